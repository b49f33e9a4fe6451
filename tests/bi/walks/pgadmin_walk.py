"""pgAdmin, as a person uses it: a server, the tree of objects, the Query Tool.

Run by ``run.py``, under the virtual environment that has Selenium.
"""

from __future__ import annotations

import time

from browser import Browser, Keys, NotSeen, Walk, same, walk

SERVER = "owners"
EDITOR = "//div[contains(@class,'cm-content')]"
CELLS = "//div[@role='grid']//div[@role='row' and @aria-rowindex > 1]/div[@role='gridcell']"


def tab(name: str) -> str:
    return f"//*[@role='tab' and normalize-space()='{name}']"


def node(name: str, depth: int) -> str:
    return (
        f"//div[contains(@class,'file-entry')][@data-depth='{depth}']"
        f"[.//span[@class='file-name'][normalize-space()='{name}']]"
    )


def open_node(browser: Browser, name: str, depth: int) -> None:
    toggle = node(name, depth) + "//i[contains(@class,'directory-toggle')]"
    browser.see(toggle)

    def opened() -> bool:
        # pgAdmin opens an only child by itself, a moment after its parent.
        time.sleep(2)
        if browser.shown(f"{toggle}[contains(@class,'open')]"):
            return True
        browser.click(toggle)
        return False

    browser.until(opened, f"{name}, opened")


def register(browser: Browser, at: str, server: dict) -> None:
    browser.driver.get(at)
    browser.click("//*[text()='Add New Server']")
    browser.type("//input[@name='name']", SERVER)
    browser.click(tab("Connection"))
    for field in ("host", "port", "db", "username", "password"):
        browser.type(f"(//input[@name='{field}'])[1]", str(server[field]))
    browser.click("//button[.='Save']")
    browser.see(node(SERVER, 2))


def browse(browser: Browser, right: dict) -> None:
    open_node(browser, SERVER, 2)
    open_node(browser, "Databases", 3)
    open_node(browser, "oar", 4)
    open_node(browser, "Schemas", 5)
    for schema in ("logistics", "marketing", "returns"):
        browser.see(node(schema, 6))
    open_node(browser, "logistics", 6)
    open_node(browser, "Views", 7)
    open_node(browser, "deliveries", 8)
    open_node(browser, "Columns", 9)
    for column, type_ in right["columns"]:
        browser.reads(node(column, 10), f"{column}\n{type_}")
    if browser.shown(node(right["hidden"], 10)):
        raise NotSeen("a column that the owner's policy hides is in the tree")


def read_comments(browser: Browser, right: dict) -> None:
    browser.click(node("pvz_city", 10) + "//span[@class='file-name']")
    browser.click(tab("Properties"))

    def shown() -> bool:
        fields = browser.shown("//textarea")
        return any(f.get_attribute("value") == right["comment"] for f in fields)

    browser.until(shown, f"comment {right['comment']!r} among the properties")
    browser.click(node("deliveries", 8) + "//span[@class='file-name']")
    browser.reads("//body", right["table comment"])


def open_query_tool(browser: Browser) -> None:
    browser.click(node("oar", 4) + "//span[@class='file-name']")
    browser.click("//button[normalize-space()='Tools']")
    browser.click("//*[@role='menuitem'][contains(.,'Query Tool')]")
    browser.driver.switch_to.frame(browser.see("//iframe[starts-with(@id,'id-query-tool')]"))
    browser.see(EDITOR)


def write(browser: Browser, statement: str) -> None:
    browser.write(EDITOR, statement)
    browser.reads(EDITOR, statement)


def results(browser: Browser, statement: str, rows: int) -> list[list[str]]:
    write(browser, statement)
    browser.press(Keys.F5)
    browser.reads("//body", f"Total rows: {rows}")
    return browser.grid(CELLS, "..", "aria-rowindex", rows)


def go(browser: Browser, a: Walk, given: dict) -> None:
    right = given["right"]
    with a.step("register the server"):
        register(browser, given["at"], given["server"])
    with a.step("browse to an owner's table and its columns"):
        browse(browser, right)
    with a.step("read the owner's comments"):
        read_comments(browser, right)
    with a.step("open the Query Tool"):
        open_query_tool(browser)
    with a.step("a join of two owners"):
        seen = results(browser, right["join"], len(right["by city"]))
        same([[c, n, float(d)] for c, n, d in seen], right["by city"], "the join")
    with a.step("a question in plain language"):
        ((seen,),) = results(browser, right["question"], 1)
        same(round(float(seen), 9), right["answer"], "the answer")
        browser.click(tab("Messages"))
        browser.reads("//body", "drafted by the offline drafter")
    with a.step("EXPLAIN shows both owners"):
        write(browser, right["join"])
        browser.press(Keys.F7)
        browser.click(tab("Analysis"))
        for table in ("logistics.deliveries", "marketing.promos"):
            browser.reads("//table", f"Foreign Scan on {table}")
        browser.press(Keys.SHIFT, Keys.F7)
        browser.reads("//body", "Federated Query")
    with a.step("a write is refused, with the reason"):
        write(browser, "DELETE FROM logistics.deliveries")
        browser.press(Keys.F5)
        browser.reads("//body", "its rows belong to another owner")
        browser.reads("//body", "SQL state: 25006")
    with a.step("what an owner does not let out is refused, with the reason"):
        write(browser, right["refused"])
        browser.press(Keys.F5)
        browser.reads("//body", right["refusal"])
    with a.step("a running query is cancelled"):
        write(browser, right["long"])
        browser.press(Keys.F5)
        browser.reads("//body", "Waiting for the query to complete")
        given["running"](True)
        browser.click("//button[@data-label='Cancel query' and not(@disabled)]")
        browser.reads("//body", "SQL state: 57014")
        given["running"](False)
    with a.step("the session goes on"):
        ((seen,),) = results(browser, "SELECT count(*) FROM logistics.deliveries", 1)
        same(int(seen), right["deliveries"], "the count")
    with a.step("a budget of its application is used up, and says so"):
        # Which of two results of a script pgAdmin shows: the last.
        ((seen,),) = results(browser, right["as a machine"], 1)
        same(int(seen), right["highest"], "the highest number")
        browser.press(Keys.F5)
        browser.reads("//body", right["used up"])
        browser.reads("//body", "SQL state: 53400")


if __name__ == "__main__":
    walk("pgadmin", go)
