"""The report of a run: JSON, CSV, and a page that needs nothing from outside."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

import pytest
from inferx_client.bench.html import as_html
from inferx_client.bench.perf_analyzer import PerfAnalyzer
from inferx_client.bench.pictures import charts
from inferx_client.bench.report import COLUMNS, Point, Run, as_csv
from inferx_client.bench.scrape import Reading, parse
from inferx_client.bench.statistics import Figures, Measured, parse_limits
from inferx_client.bench.svg import Chart, Line
from inferx_client.bench.timing import Timing


def figures(latencies: Sequence[float], error: str | None = None) -> Figures:
    timings = [
        Timing(at, None, [at + 0.1, at + latency], [1, 9], 5, ended=at + latency)
        for at, latency in enumerate(latencies)
    ]
    if error:
        timings.append(Timing(0, ended=0, error=error))
    return Figures.of(Measured(timings, timings, 0, 20), parse_limits(["e2e:900"]))


@pytest.fixture
def run() -> Run:
    theirs = PerfAnalyzer(24, 1.0, 0.9, 10.0, 0.1, 0.8, 0.8, 1.0)
    readings = [Reading(0.0, 1, 0, 0.25), Reading(0.5, 2, 3, 0.5)]
    few, many = figures([0.5] * 20), figures([1.0] * 20, error="<script>&")
    return Run(
        "a <model> & its load",
        {"model": "m", "goodput": ["e2e:900"]},
        [
            Point("concurrency", 1.0, few, readings, theirs),
            Point("concurrency", 16.0, many, readings),
        ],
    )


def test_the_json_holds_every_figure_in_milliseconds(run: Run) -> None:
    whole = json.loads(json.dumps(run.as_json(), allow_nan=False))
    first, second = whole["points"]
    assert (first["label"], second["label"]) == ("1 at once", "16 at once")
    assert first["ttft_ms"] == dict.fromkeys(["mean", "p50", "p90", "p95", "p99", "max"], 100) | {
        "count": 20
    }
    assert first["e2e_ms"]["p99"] == 500
    assert first["tpot_ms"]["mean"] == pytest.approx(400 / 9, abs=1e-3)
    assert (first["requests"], first["output_tokens"], first["input_tokens"]) == (20, 200, 100)
    assert first["goodput"] == {
        "limits_ms": {"e2e": 900}, "share": 1.0, "requests_per_second": 1.0,
    }  # fmt: skip
    assert second["goodput"]["share"] == 0
    assert second["errors"] == {"<script>&": 1}
    assert first["stability"]["p99_ms"] == [500, 500]
    assert first["perf_analyzer"]["e2e_mean_ms"] == 800
    assert second["perf_analyzer"] is None
    assert first["timeline"][1] == {"seconds": 0.5, "running": 2, "waiting": 3, "kv_usage": 0.5}


def test_the_csv_has_a_row_per_point_and_the_named_columns(run: Run) -> None:
    rows = list(csv.reader(io.StringIO(as_csv(run.as_json()))))
    assert tuple(rows[0]) == COLUMNS
    assert COLUMNS[:4] == ("kind", "value", "requests", "errors")
    first, second = (dict(zip(COLUMNS, row, strict=True)) for row in rows[1:])
    assert (first["value"], first["e2e_p99_ms"], first["goodput_share"]) == ("1.0", "500.0", "1.0")
    assert (second["errors"], second["ttft_mean_ms"]) == ("1", "100.0")


def test_a_point_without_an_answer_has_empty_cells_and_a_page(run: Run) -> None:
    nothing = figures([], error="UNAVAILABLE")
    run = Run("down", {}, [Point("rate", 2.5, nothing)])
    [_, row] = csv.reader(io.StringIO(as_csv(run.as_json())))
    assert dict(zip(COLUMNS, row, strict=True))["e2e_p50_ms"] == ""
    assert "1 × UNAVAILABLE" in as_html(run.as_json())


def test_the_page_is_well_formed_and_loads_nothing(run: Run) -> None:
    page = as_html(run.as_json())
    root = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not tags & {"script", "link", "img", "iframe", "object", "image", "use", "a"}
    names = {name for element in root.iter() for name in element.attrib}
    assert not names & {"src", "href"}
    assert "@import" not in page
    assert "url(" not in page
    addresses = set(re.findall(r"https?://[^'\"<\s]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a resource
    assert len(root.findall(".//{http://www.w3.org/2000/svg}svg")) == len(charts(run.as_json()))


def test_the_page_shows_the_figures_and_escapes_what_others_wrote(run: Run) -> None:
    page = as_html(run.as_json())
    assert "<h1>a &lt;model&gt; &amp; its load</h1>" in page
    assert "1 × &lt;script&gt;&amp;" in page
    assert "Beside perf_analyzer" in page


def test_a_sweep_has_a_picture_for_load_distribution_timeline_and_stability(run: Run) -> None:
    found = charts(run.as_json())
    assert list(found) == [
        "latency", "throughput", "distribution", "first_token", "batch", "kv", "stability",
    ]  # fmt: skip
    # the second point's timeline follows the first's
    assert [at for at, _ in found["batch"].lines[0].points] == [0, 0.5, 0.5, 1.0]
    assert found["latency"].lines[0].points == [(1.0, 500.0), (16.0, 1000.0)]


INFERX = """\
# TYPE inferx:num_requests_running gauge
inferx:num_requests_running{model="m",version="1"} 3
inferx:num_requests_running{model="other",version="1"} 9
inferx:num_requests_waiting{model="m",version="1"} 2
inferx:kv_cache_usage_perc{model="m",version="1"} 0.2
"""
VLLM = """\
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.125
"""


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        (INFERX, (3, 2, 0.2)),
        (VLLM, (4, 1, 0.125)),
        ("nv_inference_count 3\n", None),
    ],
)
def test_the_servers_view_is_read_from_its_metrics(
    text: str, reading: tuple[float, float, float] | None
) -> None:
    assert parse(text, "m") == reading


def test_axes_have_about_five_round_numbers() -> None:
    def numbers(top: float) -> list[str]:
        svg = Chart("t", "x", "y", [Line("one", [(1, 0), (2, top)])], top=top).svg()
        return re.findall(r"text-anchor='end' fill='#5d6670'>([^<]+)<", svg)

    assert numbers(10_000) == ["0", "2,000", "4,000", "6,000", "8,000", "10,000"]
    assert numbers(11_000) == ["0", "2,500", "5,000", "7,500", "10,000"]
    assert numbers(0.3) == ["0", "0.1", "0.2", "0.3"]


def test_a_wide_sweep_has_a_logarithmic_axis(run: Run) -> None:
    points = [Point("concurrency", float(2**power), figures([0.5])) for power in range(9)]
    latency = charts(Run("wide", {}, points).as_json())["latency"]
    places = re.findall(r"<circle cx='([\d.]+)'", latency.svg().split("<polyline")[1])
    gaps = {round(float(b) - float(a)) for a, b in itertools.pairwise(places)}
    assert max(gaps) - min(gaps) <= 1
