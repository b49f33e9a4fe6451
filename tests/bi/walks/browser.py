"""A person at a browser: what is on the page is what is looked at, and waited for.

Runs under the virtual environment of the walks, which has Selenium.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchWindowException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

PATIENCE = 60.0
"""Seconds to wait for what a page shows; a first page compiles nothing, but two cores are few."""

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1600,1600",
)


class NotSeen(AssertionError):
    """The page does not show what it should."""


class Browser:
    """One headless Chromium with a profile of its own. A context manager."""

    def __init__(self, profile: Path) -> None:
        options = Options()
        options.binary_location = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = Service(os.environ.get("CHROMEDRIVER", "/usr/bin/chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self._grid: list[list[str]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.quit()

    def until(self, condition: Callable[[], Any], what: str, patience: float | None = None) -> Any:
        """Wait until a condition gives something that is true, and return that."""
        deadline = time.monotonic() + (patience or PATIENCE)
        while True:
            try:
                found = condition()
            except (
                ElementClickInterceptedException,
                ElementNotInteractableException,
                StaleElementReferenceException,
            ):
                found = None
            if found:
                return found
            if time.monotonic() > deadline:
                raise NotSeen(f"not seen: {what}")
            time.sleep(0.2)

    def shown(self, xpath: str) -> list[WebElement]:
        """What the page shows now of a path."""
        found = self.driver.find_elements(By.XPATH, xpath)
        return [element for element in found if element.is_displayed()]

    def see(self, xpath: str, patience: float | None = None) -> WebElement:
        """Wait for an element and return the first one."""
        return self.until(lambda: self.shown(xpath), xpath, patience)[0]

    def see_no_more(self, xpath: str) -> None:
        self.until(lambda: not self.shown(xpath), f"the end of {xpath}")

    def click(self, xpath: str) -> None:
        """Click the first element of a path as soon as it can be."""

        def try_it() -> bool:
            elements = self.shown(xpath)
            if elements:
                elements[0].click()
            return bool(elements)

        self.until(try_it, f"{xpath}, to be clicked")

    def type(self, xpath: str, text: str) -> None:
        """Put a text in the place of what a field holds."""

        def try_it() -> bool:
            elements = self.shown(xpath)
            if elements:
                elements[0].click()
                elements[0].send_keys(Keys.CONTROL, "a")
                elements[0].send_keys(text)
            return bool(elements)

        self.until(try_it, f"{xpath}, to type into")

    def press(self, *keys: str) -> None:
        """Press keys at once, or type a text, wherever the focus is."""
        chain = ActionChains(self.driver)
        for key in keys[:-1]:
            chain.key_down(key)
        chain.send_keys(keys[-1])
        for key in reversed(keys[:-1]):
            chain.key_up(key)
        chain.perform()

    def write(self, editor: str, statement: str) -> None:
        """Put a statement in the place of what an editor holds."""
        self.click(editor)
        self.press(Keys.CONTROL, "a")
        self.press(statement)

    def text(self, xpath: str = "//body") -> str:
        return self.see(xpath).text

    def reads(self, xpath: str, wanted: str, patience: float | None = None) -> str:
        """Wait until an element's text has a part, and return all of it."""

        def look() -> str:
            return next((e.text for e in self.shown(xpath) if wanted in e.text), "")

        return self.until(look, f"{wanted!r} in {xpath}", patience)

    def grid(self, cells: str, row: str, number: str, rows: int) -> list[list[str]]:
        """Wait until a grid shows so many rows, other ones than before, and return them.

        ``row`` leads from a cell to its row, which has its place in the attribute ``number``. The
        first column numbers the rows, and is left out.
        """

        def look() -> list[list[str]]:
            shown: dict[int, dict[int, str]] = {}
            for cell in self.shown(cells):
                place = cell.find_element(By.XPATH, row).get_attribute(number)
                column = cell.get_attribute("aria-colindex")
                shown.setdefault(int(place or 0), {})[int(column or 0)] = cell.text
            table = [[each[c] for c in sorted(each) if c > 1] for _, each in sorted(shown.items())]
            # A new result takes the place of the one before a moment after its rows are counted.
            return table if len(table) == rows and table != self._grid else []

        self._grid = self.until(look, f"{rows} rows in the grid")
        return self._grid


class Walk:
    """Steps with names, printed as they pass; a picture and the page's text of the one that fails."""

    def __init__(self, tool: str, browser: Browser, pictures: Path, keep_all: bool) -> None:
        self.tool = tool
        self.browser = browser
        self._pictures = pictures
        self._keep_all = keep_all
        self._number = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._number += 1
        started = time.monotonic()
        try:
            yield
        except BaseException:
            self._picture(name)
            print(f"{self.tool}: FAILED {name}", flush=True)
            raise
        if self._keep_all:
            self._picture(name)
        print(f"{self.tool}: {name} ({time.monotonic() - started:.1f} s)", flush=True)

    def _picture(self, name: str) -> None:
        self._pictures.mkdir(parents=True, exist_ok=True)
        words = re.sub(r"\W+", "-", name.lower()).strip("-")
        path = self._pictures / f"{self.tool}-{self._number:02}-{words}.png"
        try:
            self.browser.driver.save_screenshot(str(path))
        except NoSuchWindowException:
            return
        print(f"{self.tool}: picture {path}", flush=True)


def same(seen: object, right: object, what: str) -> None:
    """Compare what the page shows with what is right."""
    if seen != right:
        raise NotSeen(f"{what}: the page shows {seen!r}, right is {right!r}")


def walk(tool: str, go: Callable[[Browser, Walk, dict[str, Any]], None]) -> None:
    """Take the steps of a tool, as ``run.py`` says in the file that the command line names."""
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    given["running"] = partial(running, given["server"])
    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile)) as browser:
        go(browser, Walk(tool, browser, Path(given["pictures"]), given["keep all"]), given)
    print(f"{tool}: passed", flush=True)


def running(server: dict[str, Any], expected: bool) -> None:
    """Wait until the statement that is made to be cancelled runs, or does not any more."""
    names = {"host": "host", "port": "port", "db": "dbname", "username": "user"}
    words = {names[k]: v for k, v in server.items() if k in names}
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(**words, password=server["password"], autocommit=True) as connection:
        while True:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
                " AND pid <> pg_backend_pid() AND query LIKE '%order_id > b.order_id%'"
            ).fetchone()
            assert row is not None
            if (row[0] > 0) is expected:
                return
            if time.monotonic() > deadline:
                raise NotSeen(f"the statement {'does not run' if expected else 'still runs'}")
            time.sleep(0.1)
