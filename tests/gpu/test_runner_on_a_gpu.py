"""What only a GPU can get wrong in the runner: memory that graphs use, and others are given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from inferx.engine.plan import NewRow
from inferx.engine.sampling import SamplingParams
from inferx.model.gpu.runner import GpuRunner
from inferx.model.input_batch import SamplingRows
from inferx.model.sampler import Sampler
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


def test_penalties_of_256_rows_of_a_large_vocabulary_take_little_memory_more() -> None:
    num_rows, vocab_size, num_tokens = 256, 128_256, 1000
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(num_rows, vocab_size, generator=draw)
    pool = logits.topk(num_tokens // 10).indices.repeat(1, 10).int()  # the likeliest, each often
    params = SamplingParams(temperature=0, frequency_penalty=0.7, repetition_penalty=1.2)
    rows = SamplingRows(np.arange(num_rows), np.full(num_rows, num_tokens))
    chosen = {}
    for name in ("cpu", "cuda"):
        device = torch.device(name)
        sampler = Sampler(num_rows, vocab_size=vocab_size, eos_token_ids=(), device=device)
        sampler.add([NewRow(row, [0] * num_tokens, 10, params, row) for row in range(num_rows)])
        ours, pool_there = logits.to(device, copy=True), pool.to(device)
        if name == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        chosen[name] = sampler.sample(ours, rows, pool_there).token_ids.cpu()
    assert torch.cuda.max_memory_allocated() - before < 2**30
    assert torch.equal(chosen["cpu"], chosen["cuda"])
    assert not torch.equal(chosen["cpu"], logits.argmax(-1))
