"""When pages run out: who gives way, and how it comes back."""

from __future__ import annotations

from inferx.engine.messages import RequestOutput
from inferx.engine.plan import NewRow
from inferx.engine.sampling import SamplingParams
from inferx.engine.scheduler import Scheduler
from scheduling import (
    make_scheduler,
    planned,
    prompt_of,
    request,
    result,
    rows,
    step,
    without_start,
)


def crowded_scheduler(*, caching: bool = False) -> Scheduler:
    """Three pages, two requests with one each; both need another for position 16."""
    scheduler = make_scheduler(3, caching=caching)
    scheduler.add(request(0, 15))
    scheduler.add(request(1, 15, seed=None))
    return scheduler


def test_the_lowest_prioritys_newest_is_preempted() -> None:
    scheduler = make_scheduler(6)
    scheduler.add(request(0, 14, max_tokens=40))
    scheduler.add(request(1, 14, priority=1, max_tokens=40))
    scheduler.add(request(2, 14, priority=1, max_tokens=40))
    scheduler.add(request(3, 14, priority=2, max_tokens=40))
    first = planned(scheduler)
    assert first.block_updates == [(0, 0, [0]), (1, 0, [1]), (2, 0, [2])]
    for position in (14, 15):
        assert planned(scheduler).starts == [position] * 3
    assert planned(scheduler).block_updates == [(0, 1, [3]), (1, 1, [4]), (2, 1, [5])]
    for position in range(17, 32):
        assert planned(scheduler).starts == [position] * 3
    last = planned(scheduler)
    assert rows(last) == [(0, 32, 1, True), (1, 32, 1, True)]
    # These were uid 2's. Its tokens are in flight, so that nothing of them could be cached.
    assert last.block_updates == [(0, 2, [2]), (1, 2, [5])]
    stats = scheduler.stats()
    assert (stats.preemptions, stats.running, stats.waiting) == (1, 2, 2)


def test_a_request_that_is_itself_the_last_gives_way_itself() -> None:
    scheduler = crowded_scheduler()
    assert rows(planned(scheduler)) == [(0, 0, 15, True), (1, 0, 15, True)]
    assert rows(planned(scheduler)) == [(0, 15, 1, True), (1, 15, 1, True)]
    third = planned(scheduler)
    assert rows(third) == [(0, 16, 1, True)]
    assert third.block_updates == [(0, 1, [2])]
    stats = scheduler.stats()
    assert (stats.preemptions, stats.free_blocks, stats.waiting) == (1, 1, 1)


def test_a_prefill_gives_way_to_a_decode_before_it_in_order() -> None:
    scheduler = make_scheduler(6, budget=2)
    scheduler.add(request(0, 2, max_tokens=60))
    scheduler.add(request(1, 60))
    planned(scheduler)
    for position in range(2, 32):
        assert rows(planned(scheduler)) == [(0, position, 1, True), (1, position - 2, 1, False)]
    last = planned(scheduler)
    assert rows(last) == [(0, 32, 1, True)]
    # uid 1 had pages 1 to 4: the first is full and stays cached, the others are free.
    assert last.block_updates == [(0, 2, [2])]
    assert (scheduler.stats().free_blocks, scheduler.stats().cached_blocks) == (2, 1)


def test_a_preempted_request_keeps_what_is_in_flight_and_resumes_once_it_is_known() -> None:
    scheduler = crowded_scheduler()
    seed = planned(scheduler).new_rows[1].seed
    planned(scheduler)
    planned(scheduler)
    scheduler.abort(0)
    assert scheduler.plan() is None, "two of uid 1's tokens are in flight"
    assert without_start(scheduler.update(result(9, 51))) == [RequestOutput(1, [51])]
    assert scheduler.plan() is None, "one of them still is"
    assert without_start(scheduler.update(result(9, 52))) == [RequestOutput(1, [52])]
    resumed = planned(scheduler)
    sampling = SamplingParams(max_tokens=20, seed=None)
    assert resumed.new_rows == [NewRow(0, [*prompt_of(15, 2000), 51, 52], 15, sampling, seed)]
    assert rows(resumed) == [(0, 0, 17, True)]
    assert scheduler.update(result(9)) == []
    assert without_start(scheduler.update(result(53))) == [RequestOutput(1, [53])]


def test_a_preempted_request_can_end_by_what_was_in_flight() -> None:
    scheduler = crowded_scheduler()
    for _ in range(3):
        planned(scheduler)
    assert without_start(scheduler.update(result(9, 2))) == [
        RequestOutput(0, [9]),
        RequestOutput(1, [2], "stop", 2),
    ]
    assert scheduler.stats().waiting == 0
    assert without_start(scheduler.update(result(8, 50))) == [RequestOutput(0, [8])]


def test_a_preempted_request_can_be_aborted() -> None:
    scheduler = crowded_scheduler()
    for _ in range(3):
        planned(scheduler)
    scheduler.abort(1)
    assert scheduler.stats().waiting == 0
    assert without_start(scheduler.update(result(9, 51))) == [RequestOutput(0, [9])]


def test_a_preempted_request_finds_its_own_pages_in_the_cache() -> None:
    scheduler = crowded_scheduler(caching=True)
    step(scheduler, 9, 51)
    step(scheduler, 9, 52)
    assert rows(planned(scheduler)) == [(0, 16, 1, True)]
    scheduler.abort(0)
    resumed = planned(scheduler)
    assert rows(resumed) == [(0, 16, 1, True)], "16 of its 17 tokens need no computation"
    assert resumed.block_updates == [(0, 0, [1, 2])]
    stats = scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (30, 0), "prompts only"
    assert stats.prompt_tokens == 30


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    scheduler = make_scheduler(5, caching=False)
    scheduler.add(request(0, 15))
    scheduler.add(request(1, 47))
    step(scheduler, 9, 9)
    step(scheduler, 9, 9)
    scheduler.add(request(2, 1, priority=-1))
    assert rows(planned(scheduler)) == [(0, 16, 1, True)]
    assert scheduler.stats().free_blocks == 3
    assert rows(planned(scheduler)) == [(0, 17, 1, True), (1, 0, 1, True)]
