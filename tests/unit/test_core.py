"""EngineCore: what is launched before what is read, with overlap and without."""

from __future__ import annotations

import pytest
from inferx.engine.core import EngineCore
from inferx.engine.messages import EngineRequest, RequestOutput
from inferx.engine.plan import Plan, StepResult
from inferx.engine.sampling import SamplingParams
from inferx.engine.scheduler import Scheduler
from inferx.errors import InvalidArgument
from inferx.memory.pool import PagePool
from paged_store import EOS_TOKEN_IDS, PagedStore, expected_output
from scheduling import without_start

MAX_MODEL_LEN = 120


class RecordingStore(PagedStore):
    """Notes the order of its calls: +1 is the launch of step 1, -1 the reading of its result."""

    calls: list[int]

    def launch(self, plan: Plan) -> None:
        super().launch(plan)
        self.calls.append(plan.step)

    def collect(self) -> StepResult:
        self.calls.append(-(len(self.plans) - len(self.results) + 1))
        return super().collect()


def make_core(*, overlap: bool, num_blocks: int = 32) -> tuple[EngineCore, RecordingStore]:
    scheduler = Scheduler(
        pool=PagePool(num_blocks, 16, enable_prefix_caching=True),
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=MAX_MODEL_LEN,
        eos_token_ids=EOS_TOKEN_IDS,
    )
    runner = RecordingStore(
        num_blocks=num_blocks, block_size=16, max_num_seqs=4, max_num_batched_tokens=32
    )
    runner.calls = []
    return EngineCore(scheduler, runner, overlap=overlap), runner


def greedy(uid: int, prompt: list[int], max_tokens: int) -> EngineRequest:
    return EngineRequest(uid, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def test_with_overlap_a_step_is_launched_before_the_one_before_is_read() -> None:
    core, runner = make_core(overlap=True)
    core.add(greedy(0, [5, 6], 3))
    outputs = [without_start(core.step()) for _ in range(4)]
    assert runner.calls == [1, 2, -1, 3, -2, -3]
    tokens, _, _ = expected_output([5, 6], SamplingParams(max_tokens=3, ignore_eos=True), 120)
    assert outputs == [
        [],
        [RequestOutput(0, tokens[:1])],
        [RequestOutput(0, tokens[1:2])],
        [RequestOutput(0, tokens[2:], "length")],
    ]
    assert not core.has_work


def test_without_overlap_every_step_is_read_at_once() -> None:
    core, runner = make_core(overlap=False)
    core.add(greedy(0, [5, 6], 2))
    assert [len(core.step()) for _ in range(2)] == [1, 1]
    assert runner.calls == [1, -1, 2, -2]
    assert not core.has_work


def test_a_step_without_work_does_nothing() -> None:
    core, runner = make_core(overlap=True)
    assert core.step() == []
    assert runner.calls == []


def test_there_is_work_until_the_results_of_aborted_requests_are_read() -> None:
    core, runner = make_core(overlap=True)
    core.add(greedy(0, [5, 6], 3))
    core.step()
    core.abort(0)
    assert core.has_work
    assert core.step() == []
    assert not core.has_work
    assert runner.calls == [1, -1]


def test_an_impossible_request_is_refused_at_the_door() -> None:
    core, _ = make_core(overlap=True, num_blocks=2)
    with pytest.raises(InvalidArgument, match="need 3 KV pages"):
        core.add(greedy(0, [5] * 30, 10))
    assert not core.has_work


@pytest.mark.parametrize("overlap", [True, False])
def test_a_tiny_pool_gives_the_same_tokens_as_a_large_one(overlap: bool) -> None:
    outputs = []
    for num_blocks in (5, 100):
        core, _ = make_core(overlap=overlap, num_blocks=num_blocks)
        tokens: dict[int, list[int]] = {}
        for uid in range(6):
            core.add(greedy(uid, [uid, 7, 8], 60))
        while core.has_work:
            for output in core.step():
                tokens.setdefault(output.uid, []).extend(output.token_ids)
        outputs.append(tokens)
        stats = core.stats()
        assert (stats.preemptions > 0) == (num_blocks == 5)
        assert stats.used_blocks == 0
        assert stats.generated_tokens == 360
    assert outputs[0] == outputs[1]


def test_stats_count_steps_and_the_seconds_spent_in_them() -> None:
    core, _ = make_core(overlap=True)
    core.add(greedy(0, [5, 6], 3))
    core.step()
    assert core.stats().batch_size == 1
    while core.has_work:
        core.step()
    assert core.stats().batch_size == 0
    assert core.stats().steps == 3
    assert core.stats().step_seconds > 0
    assert sum(core.stats().step_time_counts) == 4, "the last turn only reads"
