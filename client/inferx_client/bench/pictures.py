"""The charts of a run's JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferx_client.bench.svg import COLORS, Chart, Line

_AXES = {"concurrency": "requests in flight"}
_RATE_AXIS = "offered load, requests/s"


def charts(run: Mapping[str, Any]) -> dict[str, Chart]:
    """By name: latency and throughput against load for a sweep; distributions, timeline and
    stability where there is something to show.
    """
    points = [point for point in run["points"] if point["e2e_ms"]]
    found: dict[str, Chart] = {}
    if len(points) > 1:
        found["latency"] = _against_load(points)
        found["throughput"] = _throughput(points)
    if points:
        found["distribution"] = _distribution(points, "e2e", "End-to-end latency")
        found["first_token"] = _distribution(points, "ttft", "Time to first token")
    if any(point["timeline"] for point in points):
        found["batch"] = _timeline(points, "Batch size and queue over the run")
        found["kv"] = _kv(points)
    windows = [point for point in points if len(point["stability"]["p99_ms"]) > 1]
    if windows:
        found["stability"] = _stability(windows)
    return found


def _x_axis(points: Sequence[Mapping[str, Any]]) -> str:
    return _AXES.get(points[0]["kind"], _RATE_AXIS)


def _is_wide(points: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a linear axis would crowd the small loads at its end."""
    values = [point["value"] for point in points]
    return max(values) > 16 * min(values)


def _against_load(points: Sequence[Mapping[str, Any]]) -> Chart:
    lines = [
        Line(
            f"{title} {name}",
            [
                (point["value"], point[f"{span}_ms"][name])
                for point in points
                if point[f"{span}_ms"]
            ],
            dashed=name == "p99",
            marks=True,
            color=color,
        )
        for color, (span, title) in enumerate((("e2e", "end to end"), ("ttft", "first token")))
        for name in ("p50", "p99")
    ]
    return Chart("Latency against load", _x_axis(points), "ms", lines, log_x=_is_wide(points))


def _throughput(points: Sequence[Mapping[str, Any]]) -> Chart:
    pairs = [(point["value"], point["output_tokens_per_second"]) for point in points]
    lines = [Line("output tokens/s", pairs, marks=True, color=2)]
    return Chart(
        "Throughput against load", _x_axis(points), "tokens/s", lines, log_x=_is_wide(points)
    )


def _distribution(points: Sequence[Mapping[str, Any]], span: str, title: str) -> Chart:
    lines = []
    for point in points[-len(COLORS) :]:
        curve = point["curves_ms"][span]
        lines.append(
            Line(point["label"], [(value, share) for share, value in enumerate(curve)], steps=True)
        )
    return Chart(f"{title}: share of requests answered within", "ms", "%", lines, top=100.0)


def _joined(points: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    """The points' timelines one after another."""
    found, offset = [], 0.0
    for point in points:
        readings = point["timeline"]
        found += [(offset + one["seconds"], one[name]) for one in readings]
        offset += readings[-1]["seconds"] if readings else 0.0
    return found


def _timeline(points: Sequence[Mapping[str, Any]], title: str) -> Chart:
    lines = [
        Line("running", _joined(points, "running"), steps=True),
        Line("waiting", _joined(points, "waiting"), steps=True),
    ]
    return Chart(title, "seconds", "sequences", lines)


def _kv(points: Sequence[Mapping[str, Any]]) -> Chart:
    pairs = [(at, share * 100) for at, share in _joined(points, "kv_usage")]
    return Chart(
        "KV pages in use over the run", "seconds", "%", [Line("in use", pairs, steps=True)]
    )


def _stability(points: Sequence[Mapping[str, Any]]) -> Chart:
    lines = []
    for point in points:
        size = point["stability"]["window_seconds"]
        windows = point["stability"]["p99_ms"]
        pairs = [(index * size, value) for index, value in enumerate(windows)]
        lines.append(Line(point["label"], [*pairs, (len(windows) * size, windows[-1])], steps=True))
    return Chart("p99 of the latency, by windows of 10 s", "seconds", "ms", lines)
