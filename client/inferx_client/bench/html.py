"""One page for a run: its settings, its figures, its pictures; nothing is loaded from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from inferx_client.bench.pictures import charts

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif;
  color: #1d2329; background: #f6f7f9; margin: 0 auto; padding: 32px 24px; max-width: 1340px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 32px 0 8px; }
p { color: #5d6670; margin: 0 0 12px; }
.table { overflow-x: auto; background: #fff; border: 1px solid #e3e6ea; border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap; }
th { font-weight: 600; font-size: 13px; color: #5d6670; border-bottom: 1px solid #e3e6ea; }
th:first-child, td:first-child { text-align: left; }
tr + tr td { border-top: 1px solid #f0f2f4; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(560px, 100%), 1fr));
  gap: 16px; }
.pictures svg { width: 100%; height: auto; border: 1px solid #e3e6ea; border-radius: 8px; }
.settings td:last-child { text-align: left; white-space: normal; }
"""
_SPANS = {
    "ttft_ms": "Time to first token",
    "itl_ms": "Inter-token latency",
    "tpot_ms": "Time per output token",
    "e2e_ms": "End-to-end latency",
}
_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")


def as_html(run: Mapping[str, Any]) -> str:
    """The page for a run's JSON."""
    pictures = "\n".join(chart.svg() for chart in charts(run).values())
    return "\n".join(
        [
            "<!DOCTYPE html>",
            "<html lang='en'>",
            "<head>",
            "<meta charset='utf-8'/>",
            "<meta name='viewport' content='width=device-width, initial-scale=1'/>",
            f"<title>{escape(run['title'])}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            f"<h1>{escape(run['title'])}</h1>",
            "<p>Times are milliseconds on the client's clock; percentiles are nearest ranks.</p>",
            *_overview(run["points"]),
            f"<h2>Pictures</h2><div class='pictures'>{pictures}</div>",
            *_latencies(run["points"]),
            *_stability(run["points"]),
            *_perf_analyzer(run["points"]),
            *_settings(run["settings"]),
            "</body>",
            "</html>",
            "",
        ]
    )


def _overview(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    header = ("load", "requests", "errors", "seconds", "requests/s", "output tokens/s", "goodput")
    rows = []
    for point in points:
        errors = ", ".join(f"{count} × {kind}" for kind, count in point["errors"].items())
        good = point["goodput"]
        rows.append(
            (
                point["label"],
                point["requests"],
                errors or 0,
                point["seconds"],
                point["requests_per_second"],
                point["output_tokens_per_second"],
                f"{good['share']:.1%} ({good['requests_per_second']:.3g}/s)" if good else "–",
            )
        )
    yield "<h2>Load</h2>"
    yield _table(header, rows)


def _latencies(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for name, title in _SPANS.items():
        rows = [
            (point["label"], *(point[name][column] for column in _COLUMNS))
            for point in points
            if point[name]
        ]
        if rows:
            yield f"<h2>{title}, ms</h2>"
            yield _table(("load", *_COLUMNS), rows)


def _stability(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        (
            point["label"],
            len(steady["p99_ms"]),
            steady["mean_ms"],
            steady["min_ms"],
            steady["max_ms"],
            steady["deviation_ms"],
            f"{steady['variation']:.1%}",
        )
        for point in points
        if (steady := point["stability"])
    ]
    if rows:
        header = ("load", "windows", "mean", "min", "max", "standard deviation", "of the mean")
        yield "<h2>p99 of the latency by windows of 10 s, ms</h2>"
        yield _table(header, rows)


def _perf_analyzer(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    for point in points:
        theirs = point["perf_analyzer"]
        if theirs and point["e2e_ms"]:
            for name, ours, other in (
                ("requests/s", point["requests_per_second"], theirs["requests_per_second"]),
                ("mean latency, ms", point["e2e_ms"]["mean"], theirs["e2e_mean_ms"]),
                ("p50 latency, ms", point["e2e_ms"]["p50"], theirs["e2e_p50_ms"]),
                ("p99 latency, ms", point["e2e_ms"]["p99"], theirs["e2e_p99_ms"]),
            ):
                rows.append((point["label"], name, ours, other, f"{ours / other - 1:+.1%}"))
    if rows:
        yield "<h2>Beside perf_analyzer</h2>"
        yield _table(("load", "figure", "this report", "perf_analyzer", "difference"), rows)


def _settings(settings: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Settings</h2>"
    rows = [(name.replace("_", " "), value) for name, value in settings.items()]
    yield _table(("setting", "value"), rows, kind="settings")


def _table(header: Sequence[str], rows: Sequence[Sequence[object]], kind: str = "") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(_shown(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<div class='table'><table class='{kind}'><tr>{head}</tr>\n{body}</table></div>"


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
