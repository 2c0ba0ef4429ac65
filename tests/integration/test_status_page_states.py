"""What the status page makes of figures and faults, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from browsing import browser, cells, pairs, tab, table
from chromium import Tab
from status_site import StatusSite, histogram, made_up

__all__ = ["browser", "tab"]  # fixtures


@pytest.fixture
def site(tab: Tab) -> Iterator[StatusSite]:
    """Shown in the tab, once it has the first figures."""
    site = StatusSite()
    with site.listening() as url:
        tab.show(url)
        tab.wait_for("!document.querySelector('#main').hidden")
        yield site


def test_figures_are_shown_and_there_is_no_word_on_the_console(tab: Tab, site: StatusSite) -> None:
    assert tab.text("#model-name") == "made-up"
    assert tab.text("#state") == "ready"
    assert pairs(tab, "#tiles") == {
        "Tokens/s": "–",
        "Running": "2",
        "Waiting": "1",
        "Batch size": "2",
        "KV used": "20%",
        "Prefix hits": "–",
    }
    assert pairs(tab, "#settings") == {"model": "org/made-up", "max_model_len": "the model's"}
    memory = tab.evaluate("document.querySelector('#memory svg').ariaLabel")
    assert memory == (
        "resident: now 3.00 GiB, at most 3.00 GiB in the last 5 minutes; "
        "peak: now 4.00 GiB, at most 4.00 GiB in the last 5 minutes"
    )
    assert tab.console == []


def test_rates_and_quantiles_are_of_what_was_added_meanwhile(tab: Tab, site: StatusSite) -> None:
    ttft = "time_to_first_token_seconds"
    before = {ttft: histogram(10, 10, 10, 10), "inter_token_latency_seconds": []}
    site.status = made_up(1010.0, tokens=500.0, histograms=before)
    tab.wait_for("document.querySelector('#latency').innerText.includes('99 ms')")
    after = {ttft: histogram(10, 20, 20, 20), "inter_token_latency_seconds": []}
    site.status = made_up(1020.0, tokens=1500.0, histograms=after)
    tab.wait_for("document.querySelector('#tiles').innerText.includes('100')")
    # Ten of up to 0.1 s were there at 1010; ten of 0.1 to 0.2 s came until 1020
    assert table(tab) == [
        ["Last 20 s"],
        ["Time to first token", "100 ms", "180 ms", "198 ms"],
        ["Between tokens", "–", "–", "–"],
        ["Since the start"],
        ["Time to first token", "100 ms", "180 ms", "198 ms"],
        ["Between tokens", "–", "–", "–"],
    ]
    far = {ttft: histogram(10, 20, 20, 40), "inter_token_latency_seconds": []}
    site.status = made_up(1080.0, tokens=1500.0, histograms=far)
    tab.wait_for("document.querySelector('#latency').innerText.includes('Last minute')")
    # The oldest reading of the last minute is that of 1020: all since are beyond the last bound
    assert table(tab)[1] == ["Time to first token", "> 400 ms", "> 400 ms", "> 400 ms"]
    assert table(tab)[4] == ["Time to first token", "200 ms", "> 400 ms", "> 400 ms"]


def test_a_map_of_many_pages_has_squares_of_a_round_number(tab: Tab, site: StatusSite) -> None:
    assert cells(tab) == {"used": 2, "cached": 3, "free": 5}
    site.status = made_up(1001, kv_pages_used=1.0, kv_pages_cached=25_000.0, kv_pages_free=24_999.0)
    tab.wait_for("document.querySelectorAll('#pages i').length === 500")
    assert cells(tab) == {"used": 1, "cached": 249, "free": 250}
    assert tab.text("#pages-hint").startswith("A square is 100 pages")
    label = tab.evaluate("document.querySelector('#pages').ariaLabel")
    assert label == "KV pages: 1 used, 25,000 cached, 24,999 free"
    site.status = made_up(1002, kv_pages_used=0.0, kv_pages_cached=0.0, kv_pages_free=0.0)
    tab.wait_for("document.querySelectorAll('#pages i').length === 0")
    assert tab.text("#pages-hint") == "This engine has no KV pages."


def test_a_dead_engine_is_named_until_it_is_back(tab: Tab, site: StatusSite) -> None:
    site.status = made_up(1001, state="engine down", engine_up=0.0)
    tab.wait_for("document.querySelector('#state').innerText === 'engine down'")
    assert tab.text("#notice").startswith("The engine process is not running.")
    site.status = made_up(1002)
    tab.wait_for("document.querySelector('#state').innerText === 'ready'")
    assert tab.evaluate("document.querySelector('#notice').hidden")


def test_without_metrics_the_last_figures_stay_with_their_age(tab: Tab, site: StatusSite) -> None:
    lost = made_up(1030, state="unknown", values=None)
    site.status = {**lost, "problem": "Triton's metrics page does not answer"}
    tab.wait_for("!document.querySelector('#notice').hidden")
    assert re.fullmatch(
        r"Triton's metrics page does not answer\. The figures are those of [\d:]{8}\. "
        r"Trying again\.",
        tab.text("#notice"),
    )
    assert tab.text("#state") == "state unknown"
    assert pairs(tab, "#tiles")["Running"] == "2"


def test_a_server_that_is_gone_is_said_to_be_and_asked_again(tab: Tab, site: StatusSite) -> None:
    site.status = None
    tab.wait_for("document.querySelector('#state').innerText === 'no answer'")
    assert re.fullmatch(
        r"The server has not answered since [\d:]{8}\. Trying again\.", tab.text("#notice")
    )
    site.status = made_up(5.0, num_requests_running=7.0)  # another one, whose clock is behind
    tab.wait_for("document.querySelector('#state').innerText === 'ready'")
    assert pairs(tab, "#tiles")["Running"] == "7"
    assert table(tab)[0] == ["Last 0 s"]


def test_a_hidden_tab_does_not_ask(tab: Tab, site: StatusSite) -> None:
    hide = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}})"
    changed = "document.dispatchEvent(new Event('visibilitychange'))"
    tab.evaluate(hide.format("true"))
    # The poll that is under way may end; a second's worth of them after it may not begin
    tab.evaluate(f"new Promise((done) => setTimeout(done, 1500)).then(() => {changed})")
    asked = site.num_asked
    tab.evaluate("new Promise((done) => setTimeout(done, 2500))")
    assert site.num_asked == asked
    site.status = made_up(1001, num_requests_running=9.0)
    tab.evaluate(f"{hide.format('false')}; {changed}")
    tab.wait_for("document.querySelector('#tiles').innerText.includes('9')")


def test_of_several_models_one_is_chosen(tab: Tab, site: StatusSite) -> None:
    assert tab.evaluate("document.querySelector('#model-choice').hidden")
    (first,), (second,) = (made_up(1001, name=name)["models"] for name in ("first", "second"))
    second["values"]["num_requests_running"] = 8.0
    site.status = {**made_up(1001), "models": [first, second]}
    tab.wait_for("!document.querySelector('#model-choice').hidden")
    assert pairs(tab, "#tiles")["Running"] == "2"
    choose = "select.value = 'second'; select.dispatchEvent(new Event('change'))"
    tab.evaluate(f"const select = document.querySelector('#model-select'); {choose}")
    assert pairs(tab, "#tiles")["Running"] == "8"
    assert tab.evaluate("document.title") == "second · ready · InferX"


def test_what_the_server_says_stays_text(tab: Tab, site: StatusSite) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    made = made_up(1001, name=nasty, settings={nasty: nasty})
    error = {"status": 500, "message": nasty, "count": 2, "time": 0, "age": 3.0}
    site.status = {**made, "errors": [error]}
    tab.wait_for("document.querySelector('#errors b')?.innerText === '500'")
    assert tab.text("#model-name") == nasty
    assert pairs(tab, "#settings") == {nasty: nasty}
    assert tab.text("#errors").splitlines() == ["500", nasty, "3 s ago, 2 times"]
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert tab.console == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 800, 1280, 1920])
def test_the_page_is_as_wide_as_its_window(
    tab: Tab, site: StatusSite, width: int, dark: bool
) -> None:
    tab.resize(width, 900, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    ground, ink = (
        tab.evaluate(f"getComputedStyle(document.body).{name}.match(/\\d+/g).map(Number)")
        for name in ("backgroundColor", "color")
    )
    assert (sum(ground) < sum(ink)) is dark
