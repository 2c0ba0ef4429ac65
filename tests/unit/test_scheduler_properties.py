"""The scheduler against a serial oracle: whatever happens around it, a request gets its tokens.

Requests with shared prefixes, priorities and stop tokens come and are aborted in any order, with
pools, budgets and slots that are much too small, and with up to three plans in flight. The runner
(paged_store.py) would show a wrong page as a wrong token.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from inferx.engine.messages import EngineRequest
from inferx.engine.request import Request, Status
from inferx.engine.sampling import SamplingParams
from inferx.engine.scheduler import Scheduler
from inferx.memory.pool import PagePool
from paged_store import EOS_TOKEN_IDS, VOCAB_SIZE, PagedStore, expected_output

MAX_MODEL_LEN = 64

prompts = st.builds(
    # Few different beginnings, so that prefixes are shared, and any end.
    lambda head, length, tail: [head] * length + tail,
    st.integers(0, 1),
    st.sampled_from([0, 8, 15, 16, 17, 32, 40]),
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8),
)


@st.composite
def samplings(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.sampled_from([1, 2, 10, 40, 40]))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.sampled_from([0, 1, max_tokens // 2, max_tokens])),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=draw(st.sampled_from([(), (2,), (0, 7)])),
        seed=draw(st.sampled_from([None, 0, 5])),
        priority=draw(st.sampled_from([0, 0, 0, -1, 1])),
        cache_salt=draw(st.sampled_from([None, None, "tenant"])),
        logprobs=draw(st.sampled_from([None, 1])),
    )


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(4, 9),
        block_size=st.sampled_from([16, 16, 32]),
        caching=st.booleans(),
        max_num_seqs=st.sampled_from([1, 2, 4, 6]),
        budget=st.sampled_from([1, 3, 7, 16, 33, 200, 200]),
        num_drafts=st.sampled_from([0, 0, 0, 2]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        caching: bool,
        max_num_seqs: int,
        budget: int,
        num_drafts: int,
    ) -> None:
        self.pool = PagePool(num_blocks, block_size, enable_prefix_caching=caching)
        self.scheduler = Scheduler(
            pool=self.pool,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=EOS_TOKEN_IDS,
        )
        self.runner = PagedStore(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            num_drafts=num_drafts,
        )
        self.max_num_seqs = max_num_seqs
        self.max_in_flight = 1 if num_drafts else 3
        self.requests: dict[int, tuple[list[int], SamplingParams]] = {}
        self.expected: dict[int, tuple[list[int], str, int | None]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.ends: dict[int, Any] = {}  # uid -> finish_reason, stop_token_id; or "aborted"
        self.seeds: dict[int, int] = {}

    @rule(requests=st.lists(st.tuples(prompts, samplings()), min_size=1, max_size=4))
    def add(self, requests: list[tuple[list[int], SamplingParams]]) -> None:
        for prompt, sampling in requests:
            uid = len(self.requests)
            self.requests[uid] = prompt, sampling
            self.expected[uid] = expected_output(prompt, sampling, MAX_MODEL_LEN)
            self.outputs[uid] = []
            self.scheduler.add(EngineRequest(uid, prompt, sampling))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """Also of those that ended: nothing happens then."""
        uid = data.draw(st.sampled_from(sorted(self.requests)))
        self.scheduler.abort(uid)
        self.ends.setdefault(uid, "aborted")

    @precondition(lambda self: self.scheduler.num_in_flight < self.max_in_flight)
    @rule()
    def plan(self) -> None:
        first = min(self.running(), key=lambda request: request.order, default=None)
        slot = first.slot if first is not None else None
        plan = self.scheduler.plan()
        if plan is None:
            assert first is None, "something runs and has no work"
            assert self.scheduler.num_in_flight or not self.scheduler.has_unfinished
            return
        if slot is not None:
            assert slot in plan.slots, "the first in order makes progress in every step"
        self.runner.launch(plan)
        self.check_seeds(plan)

    @precondition(lambda self: self.scheduler.num_in_flight)
    @rule()
    def update(self) -> None:
        for output in self.scheduler.update(self.runner.collect()):
            _, sampling = self.requests[output.uid]
            assert output.uid not in self.ends, "an output after the end"
            assert output.token_ids
            assert output.error is None
            self.outputs[output.uid] += output.token_ids
            if sampling.logprobs is None:
                assert output.logprobs is None
            else:
                assert output.logprobs is not None
                assert [entry.top_ids for entry in output.logprobs] == [
                    [token] for token in output.token_ids
                ]
            if output.finished:
                self.ends[output.uid] = output.finish_reason, output.stop_token_id

    @rule(num_steps=st.integers(1, 20), depth=st.integers(0, 2))
    def steps(self, num_steps: int, depth: int) -> None:
        """As EngineCore does it, to get somewhere."""
        depth = min(depth, self.max_in_flight - 1)
        for _ in range(num_steps):
            while self.scheduler.num_in_flight > depth:
                self.update()
            self.plan()
            self.pages_and_slots_are_accounted_for()

    def running(self) -> list[Request]:
        return [*self.scheduler._decoding, *self.scheduler._prefilling]

    def check_seeds(self, plan: Any) -> None:
        uid_by_slot = {request.slot: request.uid for request in self.running()}
        for row in plan.new_rows:
            if row.slot in uid_by_slot:  # else planned to its end at once
                uid = uid_by_slot[row.slot]
                assert self.seeds.setdefault(uid, row.seed) == row.seed

    @invariant()
    def pages_and_slots_are_accounted_for(self) -> None:
        pool, running = self.pool, self.running()
        assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks
        owners = Counter(page for request in running for page in request.blocks.pages)
        assert owners == Counter(
            {page: count for page, count in enumerate(pool._ref_counts) if count}
        )
        assert pool.num_used == len(owners)
        assert set(pool._free).isdisjoint(pool._cached)
        for page in pool._free:
            assert pool._digests[page] is None
        for request in running:
            for index, page in enumerate(request.blocks.pages):
                if owners[page] > 1:
                    assert pool._digests[page] is not None, "a shared page is not registered"
                    end = (index + 1) * pool.block_size
                    assert end <= request.num_computed_tokens, "a shared page is still written"
                    assert end <= len(request.token_ids)

        slots = [request.slot for request in running]
        assert sorted(slots + self.scheduler._free_slots) == list(range(self.max_num_seqs))

    @invariant()
    def states_are_what_they_say(self) -> None:
        for request in self.running():
            num_left = request.num_tokens - request.num_computed_tokens
            if request.status is Status.DECODING:
                assert num_left == 1
            else:
                assert request.status is Status.PREFILLING
                assert num_left >= 1
        for request in self.scheduler._requests.values():
            if request.status in (Status.WAITING, Status.DRAINING):
                assert (request.slot, request.blocks.pages) == (-1, [])
            if request.status is Status.WAITING:
                assert request.num_computed_tokens == 0
        stats = self.scheduler.stats()
        unfinished = self.requests.keys() - self.ends.keys()
        assert self.scheduler.has_unfinished == bool(unfinished)
        num_draining = sum(
            request.status is Status.DRAINING for request in self.scheduler._requests.values()
        )
        assert stats.running + stats.waiting + num_draining == len(unfinished)
        assert stats.generated_tokens == sum(map(len, self.outputs.values()))
        assert 0 <= stats.prefix_cache_hits <= stats.prefix_cache_queries

    @invariant()
    def outputs_are_those_of_the_oracle(self) -> None:
        for uid, output in self.outputs.items():
            expected = self.expected[uid]
            end = self.ends.get(uid)
            if end is None or end == "aborted":
                assert output == expected[0][: len(output)]
            else:
                assert (output, *end) == expected

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        bound = 50 + 200 * sum(len(prompt) + 40 for prompt, _ in self.requests.values())
        while self.scheduler.has_unfinished or self.scheduler.num_in_flight:
            assert bound > 0, "it goes on for ever"
            bound -= 1
            num_in_flight = self.scheduler.num_in_flight
            if num_in_flight < self.max_in_flight:
                self.plan()
            if num_in_flight in (self.scheduler.num_in_flight, self.max_in_flight):
                self.update()
        self.outputs_are_those_of_the_oracle()
        self.pages_and_slots_are_accounted_for()
        self.states_are_what_they_say()
        assert self.ends.keys() == self.requests.keys()
        assert self.pool.num_used == 0
        assert self.scheduler.plan() is None


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


long_requests = st.tuples(
    prompts,
    st.builds(
        SamplingParams,
        max_tokens=st.integers(16, 48),
        ignore_eos=st.sampled_from([True, True, False]),
        priority=st.sampled_from([0, 0, 0, -1, 1]),
    ),
)


@given(
    bursts=st.lists(
        st.tuples(st.lists(long_requests, min_size=1, max_size=3), st.integers(0, 10)),
        min_size=2,
        max_size=4,
    ),
    num_blocks=st.integers(4, 6),
    caching=st.booleans(),
    budget=st.sampled_from([4, 20, 100]),
    depth=st.integers(0, 3),
)
@settings(max_examples=200, deadline=None)
def test_outputs_survive_preemption(
    bursts: list[tuple[list[tuple[list[int], SamplingParams]], int]],
    num_blocks: int,
    caching: bool,
    budget: int,
    depth: int,
) -> None:
    """Long outputs in a pool for hardly more than one of them: most runs preempt."""
    machine = SchedulerMachine()
    machine.start(num_blocks, 16, caching, max_num_seqs=4, budget=budget, num_drafts=0)
    machine.max_in_flight = depth + 1
    for requests, num_steps in bursts:
        machine.add(requests)
        machine.steps(num_steps, depth)
        machine.states_are_what_they_say()
    machine.teardown()
