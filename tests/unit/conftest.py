"""Unit tests compute on tiny tensors: waking a second thread costs more than it brings."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import triton_double

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
triton_double.install()


@pytest.fixture
def batch_invariant() -> Iterator[None]:
    """The batch-invariant mode, with threads that share the work."""
    import torch
    from inferx_kernels import ops

    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    ops.use_batch_invariant(True)
    yield
    ops.use_batch_invariant(False)
    torch.set_num_threads(num_threads)
