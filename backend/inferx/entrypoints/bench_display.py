"""How a load test looks in a terminal: a bar per load while it runs, a table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from inferx_client.bench.loads import ClosedLoad, OpenLoad
from inferx_client.bench.report import Point
from inferx_client.bench.timing import Timing
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_SPANS = {"TTFT": "ttft_ms", "ITL": "itl_ms", "TPOT": "tpot_ms", "e2e": "e2e_ms"}


class Display:
    """A Watcher of the run. Progress goes to standard error, the table to standard output."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}", style="dim"),
            console=Console(stderr=True, highlight=False),
        )
        self._task = self._progress.add_task("", total=None, now="")
        self._tokens = self._errors = self._ended = 0
        self._total: int | None = None
        self._latency = 0.0

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def says(self, text: str) -> None:
        self._progress.update(self._task, description=escape(text))

    def begins(self, load: ClosedLoad | OpenLoad) -> None:
        self._progress.remove_task(self._task)
        if isinstance(load, ClosedLoad):
            name = f"{load.streams} at once"
            total = None if load.count is None else load.count + load.warm_up
        else:
            name, total = f"{load.rate:.3g} requests/s", len(load.arrivals)
        self._task = self._progress.add_task(name, total=total, now="")
        self._total = total
        self._tokens = self._errors = self._ended = 0
        self._latency = 0.0

    def ended(self, timing: Timing) -> None:
        self._ended += 1
        self._errors += timing.error is not None
        self._tokens += timing.output_tokens
        self._latency += timing.latency
        mean = self._latency / self._ended * 1e3
        errors = f", {self._errors} failed" if self._errors else ""
        now = f"{self._tokens} tokens, {mean:.0f} ms a request{errors}"
        self._progress.update(self._task, completed=self._shown(), now=now)

    def _shown(self) -> int:
        """Of the requests that have ended, those that the load has to have: when it has them, each
        of its streams finishes what it has begun."""
        return self._ended if self._total is None else min(self._ended, self._total)

    def measured(self, point: Point) -> None:
        self._progress.stop_task(self._task)
        self._task = self._progress.add_task("", total=None, visible=False, now="")

    def summary(self, run: Mapping[str, Any]) -> None:
        table = Table(box=None, pad_edge=False)
        table.add_column("load")
        for name in ("requests/s", "tokens/s", *(f"{name}, ms" for name in _SPANS)):
            table.add_column(name, justify="right")
        for point in run["points"]:
            table.add_row(
                point["label"],
                f"{point['requests_per_second']:.2f}",
                f"{point['output_tokens_per_second']:.0f}",
                *(
                    f"{_short(span['p50'])}/{_short(span['p99'])}" if span else "–"
                    for span in (point[key] for key in _SPANS.values())
                ),
            )
        console = Console(highlight=False)
        console.print(table)
        for line in _remarks(run):
            console.print(line, markup=False, soft_wrap=True)

    def wrote(self, path: Path) -> None:
        self._progress.console.print(f"wrote {path}", markup=False, soft_wrap=True)

    def complains(self, sentence: str) -> None:
        self._progress.console.print(f"inferx: {sentence}", markup=False, soft_wrap=True)


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"


def _remarks(run: Mapping[str, Any]) -> list[str]:
    """What the table has no column for, a line each."""
    lines = ["latencies are p50/p99"]
    for point in run["points"]:
        label = point["label"]
        failed = sum(point["errors"].values())
        lines.append(f"{label}: {point['requests']} requests, {failed} failed")
        for kind, count in point["errors"].items():
            lines.append(f"{label}: {count} × {kind}")
        if good := point["goodput"]:
            lines.append(
                f"{label}: goodput {good['requests_per_second']:.2f} requests/s "
                f"({good['share']:.1%} within {_limits(good['limits_ms'])})"
            )
        if (steady := point["stability"]) and len(steady["p99_ms"]) > 1:
            lines.append(
                f"{label}: p99 in {len(steady['p99_ms'])} windows of 10 s: "
                f"{steady['min_ms']:.0f} to {steady['max_ms']:.0f} ms, mean "
                f"{steady['mean_ms']:.0f} ± {steady['deviation_ms']:.0f} "
                f"({steady['variation']:.1%})"
            )
        if (lag := point["send_lag_ms"]) and lag["p99"] > 20:
            lines.append(
                f"{label}: this client was late with its requests, p99 {lag['p99']:.0f} ms: "
                "give it more of a processor, or a lower rate"
            )
        if (theirs := point["perf_analyzer"]) and point["e2e_ms"]:
            ours = point["requests_per_second"], point["e2e_ms"]["mean"]
            other = theirs["requests_per_second"], theirs["e2e_mean_ms"]
            lines.append(
                f"{label}: perf_analyzer {other[0]:.2f} requests/s, ours {ours[0]:.2f} "
                f"({ours[0] / other[0] - 1:+.1%}); its mean latency {other[1]:.1f} ms, "
                f"ours {ours[1]:.1f} ({ours[1] / other[1] - 1:+.1%}); "
                f"it prints {theirs['printed_requests_per_second']:.2f} requests/s, "
                "its beginning and end included"
            )
    return lines


def _limits(limits: Mapping[str, float]) -> str:
    return " ".join(f"{name}:{value:g}" for name, value in limits.items())
