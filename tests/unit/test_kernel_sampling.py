"""The sampling kernels choose what the reference chooses, token for token."""

from __future__ import annotations

import kernel_cases as cases
import pytest
import torch
from inferx_kernels import philox, sampling
from inferx_kernels.triton.sampling import sample
from torch import Tensor


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Of a draw that lies on the border of two tokens, rounding would decide."""
    torch.manual_seed(7)


def filtered(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Probabilities of what is kept, which need not add up to 1."""
    probs = (logits / temperature).softmax(-1)
    rows = torch.ones(len(logits), device=logits.device)
    if min_p > 0:
        sampling.filter_min_p(probs, rows * min_p)
    if top_k > 0:
        sampling.filter_top_k(probs, rows.long() * top_k)
    if top_p < 1:
        sampling.filter_top_p(probs, rows * top_p)
    return probs


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
    probs = filtered(logits, temperature, top_k, top_p, min_p)
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
        (5000, 3.0, 300, 0.99, 0.0),  # more than there are blocks
        (20_000, 0.8, 40, 1.0, 0.0),
        (20_000, 0.8, 0, 0.95, 0.0),
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


SETTINGS = [
    (0, 0.9, 0.0),
    (50, 1.0, 0.0),
    (50, 0.9, 0.0),
    (19_000, 0.9, 0.0),
    (0, 1.0, 0.05),
    (0, 0.5, 1e-6),
]


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), SETTINGS)
@pytest.mark.parametrize(
    "shape", ["peaked", "flat", "ties", "zeros of both signs", "mostly banned"]
)
def test_logits_of_any_shape(shape: str, top_k: int, top_p: float, min_p: float) -> None:
    num_rows, vocab = 64 if cases.ON_GPU else 2, 20_000
    noise = torch.randn(num_rows, vocab, device=cases.DEVICE)
    rank = torch.arange(1, vocab + 1, device=cases.DEVICE).float()
    logits = {
        "peaked": noise - 1.5 * rank.log(),
        "flat": 0.01 * noise,  # more tokens than are gathered: searched in place
        "ties": noise.round(),
        "zeros of both signs": torch.where(noise > 0, 0.0, -0.0),
        "mostly banned": noise.where(rank % 100 == 0, float("-inf")),
    }[shape]
    seeds = torch.arange(num_rows, device=cases.DEVICE) * 7 - 3
    rows = torch.ones(num_rows, device=cases.DEVICE)
    settings = (rows, seeds * 0 + top_k, rows * top_p, rows * min_p)
    tokens = sample(logits, *settings, seeds, seeds + 9).unsqueeze(1)
    probs = filtered(logits, 1.0, top_k, top_p, min_p).double()
    running = probs.cumsum(-1)
    target = philox.uniform(seeds, seeds + 9).unsqueeze(1) * running[:, -1:]
    # Its place in the running sum, but for rounding, which may move the threshold by a token
    chosen, through = probs.gather(1, tokens), running.gather(1, tokens)
    least_kept = probs.where(probs > 0, 1.0).amin(1, keepdim=True)
    assert (chosen > 0).all()
    assert (through > target - least_kept - 1e-5).all()
    assert (through - chosen <= target + least_kept + 1e-5).all()
