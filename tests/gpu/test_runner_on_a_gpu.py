"""What only a GPU can get wrong in the runner: memory that graphs use, and others are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from inferx.engine.sampling import SamplingParams
from inferx.model.gpu.runner import GpuRunner
from test_gpu_runner import LENGTHS, run
from tiny_models import make_tiny_model


@pytest.mark.parametrize("lengths", [(33,), LENGTHS])
def test_requests_that_edit_their_logits_get_memory_that_no_graph_writes_to(
    tmp_path: Path, lengths: tuple[int, ...]
) -> None:
    make_tiny_model(tmp_path, "qwen3")
    always = SamplingParams(
        temperature=0, max_tokens=12, ignore_eos=True, logit_bias={7: 90.0}, logprobs=2
    )
    ran = run(GpuRunner, tmp_path, [always] * len(lengths), lengths=lengths, dtype="bfloat16")
    assert ran.tokens == [[7] * 12] * len(lengths)
