"""Reading: how long the endpoint takes for a response of a stream, from Triton to its client."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

IDLE_SECONDS = 75e-6  # of a response, on a machine that has nothing else to do
SHORTEST_SECONDS, LONGEST_SECONDS = 10e-6, 500e-6  # that a clock of coarse ticks cannot pass
_BUSY = 0.75  # share of the thread's time that responses may take
_INTERVAL = 0.25  # seconds between two measurements, at least
_STATISTICS = Path("/proc/thread-self/schedstat")
_FEWEST = 1000  # responses a second; of fewer, other work would be taken for theirs


class Reading:
    """Measured while there is much to read, for the requests that follow. For one thread, the event
    loop's."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        busy_seconds: Callable[[], float] | None = None,
    ) -> None:
        """`busy_seconds`: for how long this thread has run, or waited to run, so far."""
        self._clock = clock
        self._busy_seconds = busy_seconds or _busy_seconds
        self._seconds = IDLE_SECONDS
        self._responses = 0  # since the measurement before
        self._measured_at = clock()
        self._busy_before = self._busy_seconds()

    def count(self) -> None:
        """A response was read."""
        self._responses += 1

    def time_for_each(self) -> float:
        """Seconds that lie at least between two responses, so that all of them can be read."""
        elapsed = self._clock() - self._measured_at
        if elapsed >= _INTERVAL:
            self._measure(elapsed)
        return self._seconds / _BUSY

    def _measure(self, elapsed: float) -> None:
        busy = self._busy_seconds()
        if self._responses < _FEWEST * elapsed:
            self._seconds = IDLE_SECONDS
        else:
            measured = (busy - self._busy_before) / self._responses
            measured = min(max(measured, SHORTEST_SECONDS), LONGEST_SECONDS)
            self._seconds += (measured - self._seconds) / 2
        self._responses = 0
        self._measured_at += elapsed
        self._busy_before = busy


def _busy_seconds() -> float:
    """A thread that others keep from running can read as little as one that runs. Kernels without
    scheduling statistics, which have no such file or zeros in it, say the running alone."""
    try:
        running, waiting, _ = map(int, _STATISTICS.read_text().split())
    except OSError:
        return time.thread_time()
    return (running + waiting) / 1e9 if running else time.thread_time()
