"""What a server's processes hold, sampled while it is under load."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from _processes import ENGINE, STUB, children, memory
from inferx.triton.server import TritonServer


class Watch:
    """Memory by process over time, in bytes, and whatever `others` measure."""

    def __init__(self, server: TritonServer, **others: Callable[[], int]) -> None:
        self._server = server
        self._others = others
        self.samples: list[tuple[float, dict[str, int]]] = []
        self.start = time.monotonic()

    async def run(self) -> None:
        while True:
            usage = await asyncio.to_thread(self._usage)
            self.samples.append((time.monotonic() - self.start, usage))
            await asyncio.sleep(1)

    def _usage(self) -> dict[str, int]:
        pid = self._server.pid
        return {
            "stub": memory(children(pid, STUB)),
            "engine": memory(children(pid, ENGINE)),
            "shared": sum(_shared_memory(children(pid, STUB) + children(pid, ENGINE)).values()),
            **{name: measure() for name, measure in self._others.items()},
        }

    def samples_of(self, name: str) -> list[tuple[float, int]]:
        """(seconds since the start, value), one a second or so."""
        return [(moment, usage[name]) for moment, usage in self.samples]

    def growth(self, name: str, since: float, until: float) -> int:
        """Bytes between the medians of the span's first and last third."""
        third = (until - since) / 3

        def median(begin: float, end: float) -> float:
            return statistics.median(
                usage[name] for moment, usage in self.samples if begin <= moment <= end
            )

        return round(median(until - third, until) - median(since, since + third))


def _shared_memory(processes: list[psutil.Process]) -> dict[str, int]:
    """Bytes by file in /dev/shm that the processes map; Triton's own region grows by design."""
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            for mapped in process.memory_maps():
                name = mapped.path
                if name.startswith("/dev/shm/") and "triton_python_backend" not in name:
                    found[name] = Path(name).stat().st_size
    return found
