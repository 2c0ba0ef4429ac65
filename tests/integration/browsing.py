"""A browser for the tests that want one, and what they read off the status page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from chromium import Browser, Tab, chromium, find_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Skips where there is no Chromium."""
    program = find_chromium()
    if program is None:
        pytest.skip("the status page is tested in Chromium: sudo apt install chromium")
    with chromium(program) as browser:
        yield browser


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    with browser.tab() as tab:
        yield tab


def pairs(tab: Tab, selector: str) -> dict[str, str]:
    """The names and values of a definition list."""
    found: list[tuple[str, str]] = tab.evaluate(
        f"Array.from(document.querySelectorAll({json.dumps(selector + ' dt')}),"
        " (dt) => [dt.textContent, dt.nextElementSibling.textContent])"
    )
    return dict(found)


def cells(tab: Tab) -> dict[str, int]:
    """How many squares of the map are in each state."""
    found: list[str] = tab.evaluate(
        "Array.from(document.querySelectorAll('#pages i'), (cell) => cell.className)"
    )
    return {state: found.count(state) for state in ("used", "cached", "free")}


def table(tab: Tab) -> list[list[str]]:
    """The rows of the table of latencies, its heads apart."""
    rows: Any = tab.evaluate(
        "Array.from(document.querySelectorAll('#latency tbody tr'),"
        " (row) => Array.from(row.children, (cell) => cell.textContent))"
    )
    return rows
