"""A whole run: each load in turn, and what it brought."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from inferx_client.bench.loads import ClosedLoad, OpenLoad
from inferx_client.bench.measure import closed_loop, open_loop
from inferx_client.bench.perf_analyzer import PerfAnalyzer, run_perf_analyzer, sent_requests
from inferx_client.bench.report import Point, Run
from inferx_client.bench.scrape import timeline
from inferx_client.bench.statistics import Figures, Limit
from inferx_client.bench.target import Sending, Target
from inferx_client.bench.timing import Timing


class Watcher(Protocol):
    """Is told how a run goes."""

    def begins(self, load: ClosedLoad | OpenLoad) -> None: ...

    def ended(self, timing: Timing) -> None: ...

    def measured(self, point: Point) -> None: ...


class Silent:
    """Watches nothing."""

    def begins(self, load: ClosedLoad | OpenLoad) -> None: ...

    def ended(self, timing: Timing) -> None: ...

    def measured(self, point: Point) -> None: ...


async def run_loads(
    target: Target,
    loads: Iterable[ClosedLoad | OpenLoad],
    *,
    title: str,
    settings: Mapping[str, Any],
    limits: Mapping[Limit, float] | None = None,
    metrics_url: str | None = None,
    model: str = "",
    check: PerfAnalyzerCheck | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """`metrics_url` and `model`: whose metrics are the timeline. Raises BenchError."""
    run = Run(title, settings)
    watcher = watcher or Silent()
    for load in loads:
        watcher.begins(load)
        async with timeline(metrics_url, model) as readings:
            if isinstance(load, ClosedLoad):
                kind, value = "concurrency", float(load.streams)
                measured = await closed_loop(
                    target,
                    load.source,
                    concurrency=load.streams,
                    warm_up=load.warm_up,
                    count=load.count,
                    seconds=load.seconds,
                    observe=watcher.ended,
                )
            else:
                kind, value = load.kind, load.rate
                measured = await open_loop(
                    target, load.arrivals, warm_up=load.warm_up, observe=watcher.ended
                )
        figures = Figures.of(measured, limits)
        theirs = None
        if check is not None and isinstance(load, ClosedLoad):
            theirs = await check.of(load, figures)
        point = Point(kind, value, figures, readings, theirs)
        run.points.append(point)
        watcher.measured(point)
    return run


class PerfAnalyzerCheck:
    """Has perf_analyzer measure a level of concurrency too."""

    def __init__(self, url: str, model: str, sending: Sending) -> None:
        self._url, self._model, self._sending = url, model, sending

    async def of(self, load: ClosedLoad, ours: Figures) -> PerfAnalyzer:
        """With other requests than ours, and each once, so that none is cached; as many counted."""
        used = load.warm_up + ours.requests + load.streams
        sent = sent_requests(ours.requests, load.streams)
        inputs = [load.source(used + number) for number in range(sent)]
        return await run_perf_analyzer(
            self._url,
            self._model,
            inputs,
            self._sending,
            concurrency=load.streams,
            count=ours.requests,
        )
