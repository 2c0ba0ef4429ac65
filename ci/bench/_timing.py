"""Times on a GPU by replays of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def replay_us(call: Callable[[], Any]) -> float:
    """Median of seven replays of a graph of the call, in microseconds."""
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
        stream.synchronize()
        graph.capture_begin()
        call()
        graph.capture_end()
    torch.cuda.synchronize()
    times = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times[1:])[3]


def copy_bandwidth() -> float:
    """Bytes a second, read and written, by a kernel: a graph's plain copy is a copy engine's."""
    source = torch.ones(2**30, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / replay_us(lambda: torch.neg(source, out=target)) * 1e6
