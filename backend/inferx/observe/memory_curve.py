"""MemoryCurve: what a process holds over time, and the stages that made it so."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

from inferx.observe.memory import Memory
from inferx.observe.stages import Stage

INTERVAL = 0.01  # seconds


class Point(NamedTuple):
    at: float  # time.monotonic seconds
    memory: Memory


class StageMemory(NamedTuple):
    """Bytes: the most within the stage, and what was held at its end."""

    name: str
    seconds: float
    peak: int
    resident: int


class MemoryCurve:
    """Samples `read` in a thread of its own while the context lasts."""

    def __init__(self, read: Callable[[], Memory]) -> None:
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inferx-memory", daemon=True)
        self.points: list[Point] = []

    def __enter__(self) -> MemoryCurve:
        self.points.append(Point(time.monotonic(), self._read()))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.points.append(Point(time.monotonic(), self._read()))

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.points.append(Point(time.monotonic(), self._read()))


def of_stages(points: Sequence[Point], stages: Sequence[Stage]) -> list[StageMemory]:
    """Each stage's memory; the points are from before the first one to after the last one."""
    return [_of_stage(points, stage) for stage in stages]


def _of_stage(points: Sequence[Point], stage: Stage) -> StageMemory:
    """The system's own peak counts what happened between two points. Where it did not rise, an
    earlier stage had held more, and the points have to do."""
    times = [point.at for point in points]
    first = max(0, bisect_right(times, stage.begin) - 1)
    last = min(bisect_right(times, stage.end), len(points) - 1)
    before, after = points[first].memory, points[last].memory
    within = [point.memory.resident for point in points[first : last + 1]]
    peak = after.peak if after.peak > before.peak else max(within)
    return StageMemory(stage.name, stage.end - stage.begin, peak, after.resident)
