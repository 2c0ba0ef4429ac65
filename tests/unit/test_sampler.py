"""Each request is sampled by its own settings, whoever shares the step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from inferx.engine.plan import NewRow
from inferx.engine.sampling import SamplingParams
from inferx.model.input_batch import SamplingRows
from inferx.model.sampler import Sampled, Sampler
from torch import Tensor

VOCAB = 64
EOS = (7, 9)
GREEDY = SamplingParams(temperature=0)


class Rows:
    """Requests in slots 0, 2, 4, ...: each with prompt and output so far, and its parameters."""

    def __init__(self, num_slots: int = 16) -> None:
        self.sampler = Sampler(
            num_slots, vocab_size=VOCAB, eos_token_ids=EOS, device=torch.device("cpu")
        )
        self.token_pool = torch.zeros(num_slots, 100, dtype=torch.int32)
        self.slots: list[int] = []
        self.positions: list[int] = []

    def add(self, params: SamplingParams, *, prompt=(1, 2, 3), output=(), seed: int = 5) -> Rows:
        slot, tokens = 2 * len(self.slots), [*prompt, *output]
        self.sampler.add([NewRow(slot, tokens, len(prompt), params, seed)])
        self.token_pool[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.slots.append(slot)
        self.positions.append(len(tokens))
        return self

    def sample(self, logits: Tensor, positions: list[int] | None = None) -> Sampled:
        rows = SamplingRows(np.array(self.slots), np.array(positions or self.positions))
        return self.sampler.sample(logits.clone(), rows, self.token_pool)


def logits_of(*likeliest: int) -> Tensor:
    """One row: the given tokens in falling order at 10, 9, ...; the others at 0."""
    logits = torch.zeros(1, VOCAB)
    for rank, token in enumerate(likeliest):
        logits[0, token] = 10.0 - rank
    return logits


def next_token(logits: Tensor, params: SamplingParams, **row: object) -> int:
    return Rows().add(params, **row).sample(logits).token_ids.item()


def random_logits(rows: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def many_draws(logits: Tensor, params: SamplingParams, count: int = 4000) -> Tensor:
    """How often each token is drawn, at `count` positions of one request."""
    sampler = Rows(1).add(params).sampler
    rows = SamplingRows(np.zeros(count, dtype=np.int64), np.arange(10, 10 + count))
    sampled = sampler.sample(logits.expand(count, -1).clone(), rows, torch.zeros(1, 1))
    return torch.bincount(sampled.token_ids, minlength=VOCAB)


def test_greedy_takes_the_likeliest():
    assert next_token(logits_of(20, 30), GREEDY) == 20


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 9e-6])
def test_temperatures_below_the_floor_are_greedy(temperature):
    assert next_token(logits_of(20, 30), SamplingParams(temperature=temperature)) == 20


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 0.01])
def test_a_tiny_temperature_gives_the_likeliest_and_no_nan(temperature):
    logits = torch.full((1, VOCAB), -3e4)
    logits[0, 5], logits[0, 6] = 3e4, 2.9e4
    assert next_token(logits, SamplingParams(temperature=temperature, top_p=0.9)) == 5


def test_draws_follow_the_softmax_of_the_temperature():
    logits = random_logits(1)
    counts = many_draws(logits, SamplingParams(temperature=0.8))
    expected = (logits[0] / 0.8).softmax(-1) * counts.sum()
    likely = expected > 5
    chi_square = ((counts - expected) ** 2 / expected)[likely].sum()
    assert chi_square < 2.2 * likely.sum()


def test_top_k_top_p_and_min_p_bound_what_is_drawn():
    logits = random_logits(1)
    order = logits[0].argsort(descending=True).tolist()
    probs = logits[0].softmax(-1)
    drawn = many_draws(logits, SamplingParams(top_k=3)).nonzero().flatten().tolist()
    assert sorted(drawn) == sorted(order[:3])

    nucleus = int((probs[order].cumsum(0) < 0.7).sum()) + 1
    drawn = many_draws(logits, SamplingParams(top_p=0.7)).nonzero().flatten().tolist()
    assert sorted(drawn) == sorted(order[:nucleus])

    drawn = many_draws(logits, SamplingParams(min_p=0.3)).nonzero().flatten().tolist()
    assert sorted(drawn) == (probs >= 0.3 * probs.max()).nonzero().flatten().tolist()


def test_a_huge_top_k_is_all_of_the_vocabulary():
    logits = random_logits(1)
    huge, none = SamplingParams(top_k=9_999_999), SamplingParams()
    assert torch.equal(many_draws(logits, huge), many_draws(logits, none))


def test_greedy_and_every_filter_share_one_batch():
    rows = Rows()
    for params in (
        GREEDY,
        SamplingParams(top_k=9_999_999),
        SamplingParams(top_k=1),
        SamplingParams(top_p=1e-6),
        SamplingParams(min_p=1.0),
        SamplingParams(temperature=0, top_k=5, top_p=0.5),
    ):
        rows.add(params)
    logits = random_logits(6)
    token_ids, best = rows.sample(logits).token_ids, logits.argmax(-1)
    for row in (0, 2, 3, 4, 5):
        assert token_ids[row] == best[row]


def test_a_seed_draws_the_same_whoever_shares_the_batch():
    params = SamplingParams(temperature=1.0, top_p=0.95)
    logits = random_logits(5)
    together = Rows()
    for row in range(5):
        together.add(GREEDY if row == 1 else params, seed=100 + row)
    token_ids = together.sample(logits).token_ids.tolist()
    for row in (0, 2, 3, 4):
        alone = Rows().add(params, seed=100 + row).sample(logits[row : row + 1])
        assert alone.token_ids.item() == token_ids[row]


def test_a_seed_draws_the_same_again_after_a_preemption():
    params = SamplingParams(temperature=1.0, presence_penalty=1.0)
    logits = random_logits(1)
    first = next_token(logits, params, prompt=(1, 2), output=(3, 4), seed=-9)
    rows = Rows().add(GREEDY).add(GREEDY)  # another slot, and others beside it
    rows.add(params, prompt=(1, 2), output=(3, 4), seed=-9)
    again = rows.sample(torch.cat([random_logits(2, seed=8), logits])).token_ids[2].item()
    assert again == first


def test_other_seeds_and_positions_draw_differently():
    logits = torch.zeros(1, VOCAB)
    params = SamplingParams(temperature=1.0)
    by_seed = {next_token(logits, params, seed=seed) for seed in range(40)}
    assert len(by_seed) > 20
    assert many_draws(logits, params, 40).count_nonzero() > 20


def test_repetition_counts_the_prompt_and_the_output():
    logits = torch.zeros(1, VOCAB)
    logits[0, 1], logits[0, 4], logits[0, 30] = 4.0, 3.5, 3.0
    params = SamplingParams(temperature=0, repetition_penalty=2.0)
    assert next_token(logits, params, prompt=(1, 2), output=(4,)) == 30


def test_presence_and_frequency_count_the_output_only():
    logits = torch.zeros(1, VOCAB)
    logits[0, 1], logits[0, 4], logits[0, 30] = 4.0, 3.8, 3.0
    params = SamplingParams(temperature=0, presence_penalty=1.0)
    assert next_token(logits, params, prompt=(1, 1, 1), output=(4,)) == 1
    logits[0, 4] = 5.0  # 5 - 3 * 0.5 loses to 4
    params = SamplingParams(temperature=0, frequency_penalty=0.5)
    assert next_token(logits, params, prompt=(1, 1, 1), output=(4, 4, 4)) == 1
    assert next_token(logits, params, prompt=(1, 4, 4), output=(4,)) == 4


@pytest.mark.parametrize("at_once", [1, 2, 5, 7])
def test_many_rows_are_penalized_a_few_at_a_time_with_the_same_result(at_once, monkeypatch):
    rows, logits = Rows(), random_logits(7)
    for row in range(7):
        penalty = 0.0 if row == 3 else 0.5 + row
        params = SamplingParams(temperature=0, frequency_penalty=penalty, logprobs=3)
        rows.add(params, output=logits[row].topk(1 + row).indices.tolist())
    expected = rows.sample(logits).token_ids
    assert (expected != logits.argmax(-1)).sum() > 3
    monkeypatch.setattr("inferx.model.sampler._MOST_PENALIZED", at_once * 100)
    assert torch.equal(rows.sample(logits).token_ids, expected)


def test_penalties_of_one_request_do_not_touch_the_others():
    rows = Rows()
    rows.add(GREEDY, output=(20,)).add(
        SamplingParams(temperature=0, repetition_penalty=50.0), output=(20,)
    )
    token_ids = rows.sample(logits_of(20, 30).expand(2, -1)).token_ids.tolist()
    assert token_ids == [20, 30]


def test_logit_bias_adds_to_its_tokens():
    params = SamplingParams(temperature=0, logit_bias={20: -100.0, 40: 9.5})
    assert next_token(logits_of(20, 30), params) == 40


def test_ids_outside_the_vocabulary_have_no_effect():
    params = SamplingParams(
        temperature=0,
        logit_bias={VOCAB: 100.0, 2**31 - 1: 100.0, 20: -5.0},
        stop_token_ids=(VOCAB + 5,),
        min_tokens=4,
        bad_words_token_ids=((VOCAB,), (1, 10**6)),
    )
    assert next_token(logits_of(20, 30), params) == 30


def test_min_tokens_masks_every_eos_and_stop_token_and_counts_outputs_only():
    logits = logits_of(7, 9, 12, 33)
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(12,))
    prompt = (1, 2, 3, 4, 5)
    assert next_token(logits, params, prompt=prompt) == 33
    assert next_token(logits, params, prompt=prompt, output=(40,)) == 33
    assert next_token(logits, params, prompt=prompt, output=(40, 41)) == 7


def test_ignore_eos_masks_nothing():
    assert next_token(logits_of(7, 9), SamplingParams(temperature=0, ignore_eos=True)) == 7


def test_bad_words_ban_the_token_that_would_complete_them():
    params = SamplingParams(temperature=0, bad_words_token_ids=((20,), (40, 41, 30)))
    logits = logits_of(20, 30, 31)
    assert next_token(logits, params, output=()) == 30
    assert next_token(logits, params, output=(40, 41)) == 31
    assert next_token(logits, params, output=(5, 40, 41)) == 31
    assert next_token(logits, params, output=(41,)) == 30
    assert next_token(logits, params, prompt=(40,), output=(41,)) == 30  # the output alone counts


@pytest.mark.parametrize("words", [((40, 30), (41, 30)), ((41, 30), (40, 30))])
def test_a_bad_word_is_banned_whatever_others_end_like_it(words):
    params = SamplingParams(temperature=0, bad_words_token_ids=words)
    assert next_token(logits_of(30, 31), params, output=(40,)) == 31
    assert next_token(logits_of(30, 31), params, output=(42,)) == 30


def test_a_row_of_nan_leaves_the_others_as_they_are():
    params = SamplingParams(
        temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.1, logprobs=2
    )
    rows = Rows()
    for row in range(3):
        rows.add(params, seed=row)
    logits = random_logits(3)
    healthy = rows.sample(logits)
    logits[1] = torch.nan
    sampled = rows.sample(logits)
    assert sampled.token_ids[[0, 2]].tolist() == healthy.token_ids[[0, 2]].tolist()
    assert 0 <= sampled.token_ids[1] < VOCAB
    assert sampled.logprobs[0] == healthy.logprobs[0]
    assert math.isnan(sampled.logprobs[1].logprob)


def test_a_vocabulary_that_is_banned_as_a_whole_gives_some_token():
    words = tuple((token,) for token in range(VOCAB))
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, bad_words_token_ids=words)
        assert 0 <= next_token(random_logits(1), params) < VOCAB


def test_logprobs_are_those_before_temperature_penalties_and_bias():
    logits = random_logits(2)
    exact = logits.log_softmax(-1)
    params = SamplingParams(
        temperature=0, logprobs=3, logit_bias={5: 100.0}, repetition_penalty=1.5, min_tokens=9
    )
    rows = Rows().add(GREEDY).add(params)
    sampled = rows.sample(logits)
    assert sampled.logprobs[0] is None
    entry = sampled.logprobs[1]
    assert sampled.token_ids[1] == 5
    assert entry.logprob == pytest.approx(exact[1, 5].item(), abs=1e-5)
    assert entry.rank == int((exact[1] > exact[1, 5]).sum()) + 1
    assert entry.top_ids == exact[1].topk(3).indices.tolist()
    assert entry.top_logprobs == pytest.approx(exact[1].topk(3).values.tolist(), abs=1e-5)


def test_logprobs_counts_differ_by_row_and_end_at_the_vocabulary():
    rows = Rows()
    for count in (0, 20, 5):
        rows.add(SamplingParams(temperature=0, logprobs=count))
    entries = rows.sample(random_logits(3)).logprobs
    assert [len(entry.top_ids) for entry in entries] == [0, 20, 5]
    assert all(entry.rank == 1 for entry in entries)
    small = Sampler(1, vocab_size=4, eos_token_ids=(), device=torch.device("cpu"))
    small.add([NewRow(0, [1], 1, SamplingParams(logprobs=20), 0)])
    at = SamplingRows(np.array([0]), np.array([1]))
    [entry] = small.sample(torch.zeros(1, 4), at, torch.zeros(1, 8, dtype=torch.int32)).logprobs
    assert len(entry.top_ids) == 4


def test_a_slot_forgets_its_last_request():
    rows = Rows().add(
        SamplingParams(
            temperature=0, logit_bias={40: 50.0}, min_tokens=50, bad_words_token_ids=((20,),),
            repetition_penalty=9.0, logprobs=1,
        )
    )  # fmt: skip
    rows.sampler.add([NewRow(0, [1, 2, 3], 3, GREEDY, 0)])
    sampled = rows.sample(logits_of(20, 7))
    assert sampled.token_ids.item() == 20
    assert sampled.logprobs == [None]
