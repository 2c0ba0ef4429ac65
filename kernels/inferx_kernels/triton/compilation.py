"""Compiling many kernels at once, before the first step needs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton
from triton.runtime.jit import JITFunction

_MOST_THREADS = 16


@contextmanager
def compiled_together() -> Iterator[None]:
    """Kernels launched inside are compiled, side by side, and not run: what they would have
    written is left as it was. All are ready at the end."""
    run = JITFunction.run

    def compile_alone(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **named)

    num_threads = min(_MOST_THREADS, os.cpu_count() or 1)
    JITFunction.run = compile_alone
    try:
        with ThreadPoolExecutor(num_threads) as pool, triton.AsyncCompileMode(pool):
            yield
    finally:
        JITFunction.run = run
