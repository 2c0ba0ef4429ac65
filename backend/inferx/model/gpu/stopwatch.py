"""How long the device works on a step."""

from __future__ import annotations

from time import perf_counter

import torch


class StopWatch:
    """Begins with what the stream is given next; on a CPU, at once."""

    def __init__(self, device: torch.device) -> None:
        self._events = None
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._events = begin, end
            begin.record()
        self._begin = self._end = perf_counter()

    def stop(self) -> None:
        """Behind what the stream was given last."""
        if self._events is not None:
            self._events[1].record()
        self._end = perf_counter()

    @property
    def seconds(self) -> float:
        """Waits until the device has come so far."""
        if self._events is None:
            return self._end - self._begin
        begin, end = self._events
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
