"""Turning functions that launch kernels into CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Capturing:
    """Graphs that share their memory, since one replays after the other on one stream."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        """`run` as a graph; itself where there are none, on a CPU.

        A graph keeps no reference to the memory that it uses of others: its owner has to.
        """
        if self._pool is None:
            return run
        run()  # allocates what outlives a step
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=torch.cuda.current_stream()):
            run()
        return graph.replay
