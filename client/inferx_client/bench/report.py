"""A run's outcome as JSON (the whole of it) and CSV (a row per point).

JSON times are milliseconds, named `…_ms`; percentiles are nearest ranks.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferx_client.bench.perf_analyzer import PerfAnalyzer
from inferx_client.bench.scrape import Reading
from inferx_client.bench.statistics import Distribution, Figures

VERSION = 1  # of the JSON's form

_SPANS = {"ttft": "ttft", "inter_token": "itl", "tpot": "tpot", "latency": "e2e"}
_PERCENTILES = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True)
class Point:
    """One load and what it brought. `kind`: concurrency, rate, trace or workload; `value`: streams
    in flight, or requests a second.
    """

    kind: str
    value: float
    figures: Figures
    timeline: Sequence[Reading] = ()
    perf_analyzer: PerfAnalyzer | None = None

    @property
    def label(self) -> str:
        if self.kind == "concurrency":
            return f"{self.value:g} at once"
        return f"{self.value:.3g} requests/s"


@dataclass(frozen=True)
class Run:
    """`settings`: what a reader needs to repeat the run."""

    title: str
    settings: Mapping[str, Any]
    points: list[Point] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "title": self.title,
            "settings": dict(self.settings),
            "points": [_point(point) for point in self.points],
        }


def _point(point: Point) -> dict[str, Any]:
    figures = point.figures
    found: dict[str, Any] = {
        "kind": point.kind,
        "value": point.value,
        "label": point.label,
        "requests": figures.requests,
        "errors": dict(figures.errors),
        "seconds": round(figures.seconds, 3),
        "input_tokens": figures.input_tokens,
        "output_tokens": figures.output_tokens,
        "requests_per_second": round(figures.requests_per_second, 4),
        "output_tokens_per_second": round(figures.output_tokens_per_second, 2),
        "ttft_ms": _milliseconds(figures.ttft),
        "itl_ms": _milliseconds(figures.inter_token),
        "tpot_ms": _milliseconds(figures.tpot),
        "e2e_ms": _milliseconds(figures.latency),
        "send_lag_ms": _milliseconds(figures.lag),
        "goodput": None,
        "stability": None,
        "perf_analyzer": None,
        "curves_ms": {
            _SPANS[name]: [_ms(value) for value in curve] for name, curve in figures.curves.items()
        },
        "timeline": [
            {
                "seconds": round(one.at, 2),
                "running": one.running,
                "waiting": one.waiting,
                "kv_usage": round(one.kv_usage, 4),
            }
            for one in point.timeline
        ],
    }
    if good := figures.goodput:
        found["goodput"] = {
            "limits_ms": {name: _ms(limit) for name, limit in good.limits.items()},
            "share": round(good.share, 4),
            "requests_per_second": round(good.requests_per_second, 4),
        }
    if steady := figures.stability:
        found["stability"] = {
            "window_seconds": steady.seconds,
            "p99_ms": [_ms(value) for value in steady.p99],
            "mean_ms": _ms(steady.mean),
            "min_ms": _ms(steady.min),
            "max_ms": _ms(steady.max),
            "deviation_ms": _ms(steady.deviation),
            "variation": round(steady.variation, 4),
        }
    if theirs := point.perf_analyzer:
        found["perf_analyzer"] = {
            "requests": theirs.requests,
            "requests_per_second": theirs.requests_per_second,
            "printed_requests_per_second": theirs.printed_requests_per_second,
            "responses_per_second": theirs.responses_per_second,
            "ttft_mean_ms": _ms(theirs.ttft_mean),
            "e2e_mean_ms": _ms(theirs.latency_mean),
            "e2e_p50_ms": _ms(theirs.latency_p50),
            "e2e_p99_ms": _ms(theirs.latency_p99),
        }
    return found


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _milliseconds(values: Distribution | None) -> dict[str, float] | None:
    if values is None:
        return None
    return {
        "count": values.count,
        **{name: _ms(getattr(values, name)) for name in (*_PERCENTILES, "max")},
    }


COLUMNS = (
    "kind", "value", "requests", "errors", "seconds", "input_tokens", "output_tokens",
    "requests_per_second", "output_tokens_per_second",
    *(f"{span}_{name}_ms" for span in _SPANS.values() for name in _PERCENTILES),
    "goodput_share", "goodput_requests_per_second", "p99_windows_variation",
)  # fmt: skip


def as_csv(run: Mapping[str, Any]) -> str:
    """A row per point of a run's JSON, with COLUMNS; empty where there is no figure."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    table.writeheader()
    for point in run["points"]:
        row = {name: point[name] for name in COLUMNS if name in point}
        row["errors"] = sum(point["errors"].values())
        for span in _SPANS.values():
            for name in _PERCENTILES:
                row[f"{span}_{name}_ms"] = (point[f"{span}_ms"] or {}).get(name, "")
        if good := point["goodput"]:
            row["goodput_share"] = good["share"]
            row["goodput_requests_per_second"] = good["requests_per_second"]
        if steady := point["stability"]:
            row["p99_windows_variation"] = steady["variation"]
        table.writerow(row)
    return text.getvalue()
