"""Apache Superset, as a person uses it: a connection, SQL Lab, data sets, charts.

Run by ``run.py``, under the virtual environment that has Selenium.
"""

from __future__ import annotations

import time

from browser import PATIENCE, Browser, Keys, NotSeen, Walk, same, walk
from selenium.webdriver.common.action_chains import ActionChains

CONNECTION = "oar demo"

EDITOR = "//div[contains(@class,'ace_content')]"
CELLS = "//div[@role='row' and @row-index]//div[@role='gridcell']"
OPTION = "//div[contains(@class,'ant-select-item-option')]"


def log_in(browser: Browser, at: str) -> None:
    browser.driver.get(f"{at}/login/")
    browser.type("//input[@type='text']", "admin")
    browser.type("//input[@type='password']", "admin")
    browser.click("//button[.='Sign in']")
    browser.see("//a[contains(.,'Datasets')]")


def add_connection(browser: Browser, at: str, url: str) -> None:
    browser.driver.get(f"{at}/databaseview/list/")
    browser.click("//button[@data-test='btn-create-database']")
    browser.click("//*[normalize-space(text())='PostgreSQL']")
    browser.click("//button[contains(.,'SQLAlchemy URI string instead')]")
    browser.type("//div[@role='dialog']//input[@name='database_name']", CONNECTION)
    browser.type("//div[@role='dialog']//input[@name='sqlalchemy_uri']", url)
    browser.click("//button[.='Test connection']")
    browser.reads("//body", "Connection looks good!")
    browser.click("//div[@role='dialog']//button[.='Connect']")
    browser.see(f"//td[contains(.,'{CONNECTION}')]")


def pick(browser: Browser, label: str, value: str) -> None:
    browser.click(f"//input[@aria-label='{label}']")
    browser.press(value)
    browser.click(f"{OPTION}[contains(.,'{value}')]")


def open_sql_lab(browser: Browser, at: str) -> None:
    browser.driver.get(f"{at}/sqllab/")
    browser.click("//button[contains(@class,'ant-tabs-nav-add')] | //*[@data-test='add-tab-icon']")
    browser.see(EDITOR)


def write(browser: Browser, statement: str) -> None:
    browser.write(EDITOR, statement)
    browser.press(Keys.ESCAPE)  # of what the editor proposes
    # What was typed reaches the page's state a moment later, and Run takes that.
    time.sleep(1)


def execute(browser: Browser, statement: str) -> None:
    write(browser, statement)
    browser.click("//button[.='Run']")


def results(browser: Browser, statement: str, rows: int) -> list[list[str]]:
    """Run a statement in SQL Lab and read what it shows."""
    execute(browser, statement)
    browser.reads("//body", f"{rows} row{'s' if rows > 1 else ''}")

    return browser.grid(CELLS, "./ancestor::div[@role='row']", "row-index", rows)


def go(browser: Browser, a: Walk, given: dict) -> None:
    at, right = given["at"], given["right"]
    with a.step("log in"):
        log_in(browser, at)
    with a.step("add the connection, after testing it"):
        add_connection(browser, at, given["url"])
    with a.step("SQL Lab lists owners, tables and columns"):
        open_sql_lab(browser, at)
        for schema in ("logistics", "marketing", "returns"):
            browser.see(f"//*[normalize-space(text())='{schema}']")
        browser.click("//*[normalize-space(text())='logistics']")
        browser.click("//*[normalize-space(text())='deliveries']")
        browser.see("//*[normalize-space(text())='distance_km']")
        for column, type_ in right["columns"]:
            browser.reads("//body", f"{column}\n{type_.upper().replace(' ', '_')}\n")
        shown = browser.text("//body")
        if right["hidden"] in shown:
            raise NotSeen("a column that the owner's policy hides is in the tree")
    with a.step("a join of two owners"):
        seen = results(browser, right["join"], len(right["by city"]))
        same([[c, n, float(d)] for c, n, d in seen], right["by city"], "the join")
    with a.step("a question in plain language"):
        ((seen,),) = results(browser, right["question"], 1)
        same(round(float(seen), 9), right["answer"], "the answer")
    with a.step("a question without an answer says so"):
        execute(browser, right["unanswerable"])
        browser.reads("//body", "cannot be answered from the published tables")
    with a.step("what an owner does not let out is refused, with the reason"):
        execute(browser, right["refused"])
        browser.reads("//body", right["refusal"])
    with a.step("a running query is stopped"):
        execute(browser, right["long"])
        browser.reads("//body", "Running block 1 out of 1")
        given["running"](True)
        browser.click("//button[.='Stop']")
        browser.reads("//body", "Query was stopped")
        given["running"](False)
    with a.step("a virtual data set of two owners, and a chart over it"):
        results(browser, right["join"], len(right["by city"]))
        browser.click("//button[@aria-label='Save dataset']")
        browser.type("//div[@role='dialog']//input[@placeholder='Dataset name']", "spring delays")
        before = set(browser.driver.window_handles)
        browser.click("//button[.='Save & Explore']")
        (chart,) = browser.until(
            lambda: set(browser.driver.window_handles) - before, "the chart's window"
        )
        browser.driver.switch_to.window(chart)
        browser.reads("//body", f"{len(right['by city'])} rows", 2 * PATIENCE)
        table = "//table//tbody/tr"
        rows = browser.until(lambda: browser.shown(table), "the chart's rows")
        seen = [[cell.text for cell in row.find_elements("tag name", "td")] for row in rows]
        same(sorted([c, n, float(d)] for c, n, d in seen), right["by city"], "the chart")
        save_chart(browser, "delays of spring")
    with a.step("a data set of a published table, with the owner's comments, and a chart"):
        browser.driver.get(f"{at}/dataset/add/")
        pick(browser, "Select database or type to search databases", CONNECTION)
        pick(browser, "Select schema", "logistics")
        pick(browser, "Select table or type to search tables", "deliveries")
        browser.see("//td[contains(.,'distance_km')]")
        browser.click("//button[contains(.,'Create and explore dataset')]")
        browser.click("//*[normalize-space(text())='Big Number']")
        browser.click("//button[.='Create new chart']")
        column = browser.see("//*[normalize-space(text())='pvz_city']", 2 * PATIENCE)
        ActionChains(browser.driver).move_to_element(column).perform()
        browser.reads("//body", right["comment"])
        browser.click("//*[normalize-space(text())='Drop a column/metric here or click']")
        browser.click("//input[@aria-label='Select saved metrics']")
        if not browser.shown(f"{OPTION}[contains(.,'COUNT(*)')]"):
            browser.click("//input[@aria-label='Select saved metrics']")
        browser.click(f"{OPTION}[contains(.,'COUNT(*)')]")
        browser.click("//div[contains(@class,'ant-popover')]//button[.='Save']")
        browser.click("//button[.='Create chart' or .='Update chart']")
        browser.reads("//body", f"\n{right['deliveries'] // 1000}k\n")
        save_chart(browser, "all deliveries")
    with a.step("the saved charts are listed"):
        browser.driver.get(f"{at}/chart/list/")
        for name in ("delays of spring", "all deliveries"):
            browser.reads("//body", name)


def save_chart(browser: Browser, name: str) -> None:
    browser.click("//button[.='Save' and @data-test='query-save-button']")
    browser.type("//div[@role='dialog']//input[@data-test='new-chart-name']", name)
    browser.click("//button[@data-test='btn-modal-save']")
    browser.see_no_more("//button[@data-test='btn-modal-save']")


if __name__ == "__main__":
    walk("superset", go)
