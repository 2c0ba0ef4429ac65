"""The sampling operations against sorting by hand, and their draws against the probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from inferx_kernels import ops
from inferx_kernels.philox import philox

VOCAB = 1000


def random_probs(rows: int, vocab: int = VOCAB, spread: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(rows, vocab, generator=generator) * spread).softmax(-1)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ([0] * 2, [0] * 4, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 2, [0xFFFFFFFF] * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0xA4093822, 0x299F31D0],
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_known_answers(key, counter, expected):
    words = philox(torch.tensor(key).unsqueeze(1), torch.tensor(counter).unsqueeze(1))
    assert " ".join(f"{word:08x}" for word in words[:, 0].tolist()) == expected


def test_uniform_depends_on_seed_and_position_alone():
    seeds = torch.tensor([5, -(2**63), 2**63 - 1, 5, 7])
    positions = torch.tensor([1, 2, 3, 4, 1])
    together = ops.uniform(seeds, positions)
    alone = [ops.uniform(seeds[i : i + 1], positions[i : i + 1]).item() for i in range(5)]
    assert together.tolist() == alone
    assert len(set(alone)) == 5


def test_uniform_is_uniform_over_positions_and_over_seeds():
    many = torch.arange(20_000)
    for draws in (ops.uniform(torch.zeros_like(many), many), ops.uniform(many, many * 0 + 9)):
        counts = torch.histc(draws, bins=50, min=0, max=1)
        chi_square = ((counts - 400) ** 2 / 400).sum()
        assert chi_square < 100  # 49 degrees of freedom
        assert draws.max() < 1


def test_draws_follow_the_probabilities():
    probs = random_probs(1, vocab=40)
    positions = torch.arange(40_000)
    uniforms = ops.uniform(torch.full_like(positions, 11), positions)
    drawn = ops.draw(probs.expand(len(positions), -1), uniforms)
    expected = probs[0] * len(positions)
    counts = torch.bincount(drawn, minlength=40)
    assert ((counts - expected) ** 2 / expected).sum() < 85  # 39 degrees of freedom


def test_a_token_of_probability_zero_is_never_drawn():
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    uniforms = torch.tensor([0.0, 0.24999, 0.25, 0.5, 1 - 2.0**-23])
    assert ops.draw(probs.expand(5, -1), uniforms).tolist() == [1, 1, 3, 3, 3]


def test_draw_takes_totals_that_are_not_one():
    probs = torch.tensor([[0.1, 0.1], [1e-30, 3e-30]])
    assert ops.draw(probs, torch.tensor([0.6, 0.2])).tolist() == [1, 0]


@pytest.mark.parametrize("k", [1, 2, 50, VOCAB, 9_999_999])
def test_top_k_keeps_the_k_likeliest(k):
    probs = random_probs(3)
    expected = torch.zeros_like(probs)
    for row in range(3):
        kept = sorted(range(VOCAB), key=lambda i: -probs[row, i])[:k]
        expected[row, kept] = probs[row, kept]
    ops.filter_top_k(probs, torch.tensor([k] * 3))
    assert torch.equal(probs, expected)


def test_top_k_differs_by_row():
    probs = random_probs(3)
    ops.filter_top_k(probs, torch.tensor([1, 1000, 7]))
    assert (probs > 0).sum(-1).tolist() == [1, 1000, 7]


@pytest.mark.parametrize("spread", [0.1, 2.0, 10.0])
@pytest.mark.parametrize("p", [1e-6, 0.3, 0.9, 0.99, 0.99999])
def test_top_p_keeps_the_fewest_that_hold_the_mass(p, spread):
    probs = random_probs(2, vocab=6000, spread=spread)
    kept_by_hand = []
    for row in probs.double():
        mass, kept = 0.0, 0
        for value in row.sort(descending=True).values.tolist():
            if kept and mass >= p:
                break
            mass, kept = mass + value, kept + 1
        kept_by_hand.append(kept)
    ops.filter_top_p(probs, torch.tensor([p, p]))
    for kept, by_hand in zip((probs > 0).sum(-1).tolist(), kept_by_hand, strict=True):
        assert abs(kept - by_hand) <= 1 + 0.002 * by_hand  # sums in fp32 round


def test_top_p_counts_the_mass_that_earlier_filters_left():
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    ops.filter_top_k(probs, torch.tensor([2]))
    ops.filter_top_p(probs, torch.tensor([0.5]))  # 0.4 of 0.7 is more than half
    torch.testing.assert_close(probs, torch.tensor([[0.4, 0.0, 0.0, 0.0]]))


def test_min_p_is_relative_to_the_likeliest():
    probs = torch.tensor([[0.5, 0.26, 0.24], [0.9, 0.06, 0.04]])
    ops.filter_min_p(probs, torch.tensor([0.5, 0.05]))
    torch.testing.assert_close(probs, torch.tensor([[0.5, 0.26, 0.0], [0.9, 0.06, 0.0]]))


def test_filters_and_draw_leave_a_row_of_nan_to_itself():
    probs = random_probs(3)
    expected = probs.clone()
    probs[1] = torch.nan
    for values in (probs, expected):
        ops.filter_min_p(values, torch.tensor([0.01] * 3))
        ops.filter_top_k(values, torch.tensor([40] * 3))
        ops.filter_top_p(values, torch.tensor([0.9] * 3))
    assert torch.equal(probs[[0, 2]], expected[[0, 2]])
    uniforms = torch.tensor([0.3, 0.3, 0.9])
    drawn, alone = ops.draw(probs, uniforms), ops.draw(expected, uniforms)
    assert drawn[[0, 2]].tolist() == alone[[0, 2]].tolist()
    assert 0 <= drawn[1] < VOCAB


def test_penalties_equal_those_by_hand():
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 12, generator=generator)
    token_ids = torch.randint(0, 12, (3, 9), generator=generator)
    num_prompt, num_tokens = [4, 9, 0], [7, 9, 2]
    repetition, presence, frequency = [1.3, 0.7, 1.0], [0.5, 2.0, 0.0], [0.25, 0.0, -1.0]
    expected = logits.clone()
    for row in range(3):
        seen = token_ids[row, : num_tokens[row]].tolist()
        outputs = token_ids[row, num_prompt[row] : num_tokens[row]].tolist()
        for token in range(12):
            value = expected[row, token].item()
            if token in seen:
                value = value / repetition[row] if value > 0 else value * repetition[row]
            if token in outputs:
                value -= presence[row] + frequency[row] * outputs.count(token)
            expected[row, token] = value
    ops.apply_penalties(
        logits, token_ids, torch.tensor(num_prompt), torch.tensor(num_tokens),
        torch.tensor(repetition), torch.tensor(presence), torch.tensor(frequency),
    )  # fmt: skip
    torch.testing.assert_close(logits, expected)


def test_logprobs_are_those_of_the_softmax_and_ranks_start_at_one():
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, -1.0, 5.0]])
    got = ops.chosen_logprobs(logits, torch.tensor([2, 1]), 2)
    exact = [[math.log(math.exp(x) / sum(map(math.exp, row))) for x in row] for row in
             logits.double().tolist()]  # fmt: skip
    torch.testing.assert_close(got.logprobs, torch.tensor([exact[0][2], exact[1][1]]))
    assert got.ranks.tolist() == [2, 3]
    assert got.top_ids[0].tolist() == [1, 2]
    torch.testing.assert_close(got.top_logprobs[0], torch.tensor([exact[0][1], exact[0][2]]))


def test_logprobs_without_others_have_the_chosen_alone():
    got = ops.chosen_logprobs(torch.randn(2, 5), torch.tensor([0, 4]), 0)
    assert got.top_ids.shape == got.top_logprobs.shape == (2, 0)
