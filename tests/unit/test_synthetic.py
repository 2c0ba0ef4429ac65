from __future__ import annotations

import pytest
from inferx.config import EngineConfig
from inferx.engine import synthetic
from inferx.engine.plan import NewRow, Plan
from inferx.engine.sampling import SamplingParams
from inferx.engine.synthetic import SyntheticRunner


class Clock:
    """Stands for the module `time`; sleeping is exact and takes no time."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(synthetic, "time", clock)
    return clock


def make_runner(**settings):
    config = EngineConfig.from_mapping({"engine": "synthetic", **settings})
    return SyntheticRunner(config, tokenizer=None)


def make_plan(rows, new_rows=()):
    """rows: slot, start, num_tokens, samples."""
    slots, starts, num_tokens, samples = (list(column) for column in zip(*rows, strict=True))
    return Plan(1, slots, starts, num_tokens, samples, 0, list(new_rows), [], [])


def new_row(slot, num_prompt_tokens, **sampling):
    return NewRow(slot, [0] * num_prompt_tokens, num_prompt_tokens, SamplingParams(**sampling), 0)


def test_overlapped_steps_follow_each_other_without_a_gap_and_make_up_for_delays(clock):
    runner = make_runner(synthetic_step_time=0.5)
    runner.launch(make_plan([(0, 0, 1, True)], [new_row(0, 1)]))
    ends = []
    for start in range(1, 6):
        clock.now += 0.125  # the host's work
        if start == 3:
            clock.now += 0.75  # and a hiccup
        runner.launch(make_plan([(0, start, 1, True)]))
        runner.collect()
        ends.append(clock.now)
    assert ends == [100.5, 101.0, 101.875, 102.0, 102.5]


def test_without_overlap_a_step_starts_when_it_is_launched(clock):
    runner = make_runner(synthetic_step_time=0.5)
    runner.launch(make_plan([(0, 0, 1, True)], [new_row(0, 1)]))
    runner.collect()
    clock.now += 0.25
    runner.launch(make_plan([(0, 1, 1, True)]))
    runner.collect()
    assert clock.now == 101.25


def test_every_request_reads_the_same_text_from_its_beginning_also_after_a_preemption(clock):
    runner = make_runner()
    runner.launch(make_plan([(3, 0, 5, True), (4, 0, 2, False)], [new_row(3, 5), new_row(4, 4)]))
    runner.launch(make_plan([(3, 5, 1, True), (4, 2, 2, True)]))
    assert runner.collect().token_ids == [[3]]
    assert runner.collect().token_ids == [[64], [3]]
    again = NewRow(0, [0] * 6, 5, SamplingParams(), 0)  # the first one, with its first output
    runner.launch(make_plan([(0, 0, 6, True)], [again]))
    assert runner.collect().token_ids == [[64]]


def test_logprobs_are_as_many_as_asked_for(clock):
    runner = make_runner()
    runner.launch(
        make_plan(
            [(0, 0, 1, True), (1, 0, 1, True), (2, 0, 1, True)],
            [new_row(0, 1), new_row(1, 1, logprobs=0), new_row(2, 1, logprobs=20)],
        )
    )
    none, zero, twenty = runner.collect().logprobs
    assert none is None
    assert (zero[0].logprob, zero[0].rank, zero[0].top_ids) == (0.0, 1, [])
    assert len(set(twenty[0].top_ids)) == len(twenty[0].top_logprobs) == 20
    assert twenty[0].top_ids[0] == 3


def test_the_pool_holds_the_longest_request():
    info = make_runner(max_model_len=1000, max_num_seqs=1, block_size=32).info
    assert (info.max_model_len, info.block_size) == (1000, 32)
    assert info.num_blocks * 32 >= 1000
    assert make_runner(num_gpu_blocks_override=7).info.num_blocks == 7
