"""The sampling kernels choose what the reference chooses, token for token."""

from __future__ import annotations

import kernel_cases as cases
import pytest
import torch
from inferx_kernels import philox, sampling
from inferx_kernels.triton.sampling import sample
from torch import Tensor


def reference(
    logits: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    probs = (logits / temperature).softmax(-1)
    rows = torch.ones(len(logits), device=logits.device)
    if min_p > 0:
        sampling.filter_min_p(probs, rows * min_p)
    if top_k > 0:
        sampling.filter_top_k(probs, rows.long() * top_k)
    if top_p < 1:
        sampling.filter_top_p(probs, rows * top_p)
    return sampling.draw(probs, philox.uniform(seeds, positions))


@pytest.mark.parametrize(
    ("vocab", "temperature", "top_k", "top_p", "min_p"),
    [
        (300, 0.0, 0, 1.0, 0.0),
        (300, 1.0, 0, 1.0, 0.0),
        (300, 0.7, 20, 1.0, 0.0),
        (300, 0.7, 1, 1.0, 0.0),
        (300, 1.2, 0, 0.8, 0.0),
        (300, 1.0, 0, 1.0, 0.1),
        (300, 0.9, 50, 0.9, 0.05),
        (5000, 1.0, 0, 1.0, 0.0),
        (5000, 0.9, 200, 0.9, 0.0),
        (5000, 1.0, 0, 0.3, 0.0),
    ],
)
def test_kernels_choose_what_the_reference_chooses(
    vocab: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    num_rows = 64 if cases.ON_GPU else 2
    logits = 3 * torch.randn(num_rows, vocab, device=cases.DEVICE)
    seeds = torch.randint(-(2**62), 2**62, (num_rows,), device=cases.DEVICE)
    positions = torch.arange(num_rows, device=cases.DEVICE)
    rows = torch.ones(num_rows, device=cases.DEVICE)
    tokens = sample(
        logits,
        rows * temperature,
        rows.long() * top_k,
        rows * top_p,
        rows * min_p,
        seeds,
        positions,
    )
    wanted = reference(logits, temperature, top_k, top_p, min_p, seeds, positions)
    assert tokens.tolist() == wanted.tolist()


def test_rows_keep_their_own_settings_and_nan_yields_some_token() -> None:
    logits = torch.randn(3, 300, device=cases.DEVICE)
    logits[1] = float("nan")
    temperature = torch.tensor([0.0, 1.0, 1.0], device=cases.DEVICE)
    zeros, ones = torch.zeros(3, device=cases.DEVICE), torch.ones(3, device=cases.DEVICE)
    top_k = torch.tensor([0, 0, 1], device=cases.DEVICE)
    tokens = sample(logits, temperature, top_k, ones, zeros, zeros.long(), zeros.long())
    assert tokens[[0, 2]].tolist() == logits[[0, 2]].argmax(-1).tolist()
    assert 0 <= int(tokens[1]) < 300
