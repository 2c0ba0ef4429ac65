"""How requests come in and leave: refusals, seeds, aborts in every state, the waiting queue."""

from __future__ import annotations

import pytest
from inferx.engine.messages import RequestOutput
from inferx.engine.request import Request
from inferx.engine.scheduler import Scheduler
from inferx.engine.waiting import WaitingQueue
from inferx.errors import InvalidArgument
from inferx.memory.block_table import BlockTable
from inferx.memory.pool import PagePool
from scheduling import make_scheduler, planned, request, result, rows, step, without_start


def refusal(scheduler: Scheduler, uid: int, prompt: int, **sampling: int) -> str:
    with pytest.raises(InvalidArgument) as caught:
        scheduler.add(request(uid, prompt, **sampling))
    return str(caught.value)


def test_what_can_never_fit_into_the_pool_is_refused_with_both_numbers() -> None:
    scheduler = make_scheduler(4)
    assert refusal(scheduler, 0, 60, max_tokens=6) == (
        "the prompt's 60 tokens with max_tokens 6 need 5 KV pages of 16 tokens and there are 4: "
        "shorten the prompt or lower max_tokens"
    )
    assert not scheduler.has_unfinished
    scheduler.add(request(0, 60, max_tokens=5))  # the last token is never computed


def test_a_large_max_tokens_is_fine_where_the_model_ends_within_the_pool() -> None:
    scheduler = make_scheduler(4, max_model_len=65)
    scheduler.add(request(0, 3, max_tokens=100_000))


def test_a_prompt_that_leaves_no_room_for_output_is_refused() -> None:
    assert refusal(make_scheduler(max_model_len=64), 0, 64) == (
        "the prompt has 64 tokens and the model takes 64, output included: shorten the prompt"
    )


def test_an_empty_prompt_is_refused() -> None:
    assert refusal(make_scheduler(), 0, 0) == "the prompt is empty: expected at least one token"


def test_a_uid_is_refused_while_it_is_in_use() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3))
    assert refusal(scheduler, 0, 3) == "request 0 exists already"
    scheduler.abort(0)
    scheduler.add(request(0, 3))


def test_a_request_brings_its_seed_or_has_one_drawn() -> None:
    seeds = []
    for _ in range(2):
        scheduler = make_scheduler(seed=4)
        scheduler.add(request(0, 3, seed=-1))
        scheduler.add(request(1, 3, seed=None))
        scheduler.add(request(2, 3, seed=None))
        seeds.append([row.seed for row in planned(scheduler).new_rows])
    assert seeds[0] == seeds[1], "the same engine seed draws the same"
    assert seeds[0][0] == -1
    assert len(set(seeds[0])) == 3


# Aborts


def all_pages_are_free(scheduler: Scheduler) -> bool:
    stats = scheduler.stats()
    return (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)


def test_a_queued_request_can_be_aborted() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3))
    scheduler.abort(0)
    assert scheduler.plan() is None
    assert not scheduler.has_unfinished


def test_a_prefilling_request_can_be_aborted() -> None:
    scheduler = make_scheduler(budget=16)
    scheduler.add(request(0, 40))
    planned(scheduler)
    scheduler.abort(0)
    assert all_pages_are_free(scheduler)
    assert scheduler.update(result()) == []
    assert scheduler.plan() is None


def test_a_decoding_request_can_be_aborted() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3))
    scheduler.add(request(1, 3))
    step(scheduler, 9, 9)
    scheduler.abort(0)
    assert scheduler.stats().used_blocks == 1
    assert rows(planned(scheduler)) == [(1, 3, 1, True)]


def test_a_request_can_be_aborted_with_tokens_in_flight() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3))
    planned(scheduler)
    planned(scheduler)
    scheduler.abort(0)
    assert all_pages_are_free(scheduler)
    assert (scheduler.num_in_flight, scheduler.has_unfinished) == (2, False)
    assert scheduler.update(result(9)) == []
    assert scheduler.update(result(9)) == []


def test_a_request_can_be_aborted_with_its_last_token_in_flight() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3, max_tokens=1))
    planned(scheduler)
    scheduler.abort(0)
    assert scheduler.update(result(9)) == []
    assert not scheduler.has_unfinished


def test_an_unknown_or_ended_uid_is_no_error() -> None:
    scheduler = make_scheduler()
    scheduler.abort(7)
    scheduler.add(request(0, 3, max_tokens=1))
    assert step(scheduler, 9) == [RequestOutput(0, [9], "length")]
    scheduler.abort(0)


def test_a_uid_can_be_used_again_while_results_of_its_predecessor_are_in_flight() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3))
    planned(scheduler)
    scheduler.abort(0)
    scheduler.add(request(0, 3))
    planned(scheduler)
    assert scheduler.update(result(9)) == []
    assert without_start(scheduler.update(result(8))) == [RequestOutput(0, [8])]


def waiting_request(uid: int, priority: int = 0) -> Request:
    pool = PagePool(1, 16, enable_prefix_caching=False)
    return Request(
        request(uid, [1], priority=priority),
        BlockTable(pool),
        arrival=uid,
        max_model_len=10,
        eos_token_ids=frozenset(),
    )


def test_the_queue_gives_requests_in_order_without_those_removed() -> None:
    queue = WaitingQueue()
    requests = [waiting_request(uid, priority) for uid, priority in enumerate([1, 0, 0, -1, 0])]
    for each in requests:
        queue.push(each)
    queue.remove(requests[2])
    assert queue.pop() is requests[3]
    queue.remove(requests[1])
    assert queue.first() is requests[4]
    queue.push(requests[3])
    assert [queue.pop().uid for _ in range(len(queue))] == [3, 4, 0]
    assert queue.first() is None
    with pytest.raises(IndexError):
        queue.pop()


def test_the_queue_keeps_no_memory_of_requests_removed_from_its_middle() -> None:
    queue = WaitingQueue()
    queue.push(waiting_request(0, priority=-1))
    for uid in range(1, 1000):
        each = waiting_request(uid)
        queue.push(each)
        queue.remove(each)
    assert len(queue) == 1
    assert len(queue._heap) <= 20


def test_without_max_tokens_a_request_may_fill_the_model_or_the_pool() -> None:
    for max_model_len, num_blocks, expected in ((40, 64, 40), (256, 3, 49)):
        scheduler = make_scheduler(num_blocks, max_model_len=max_model_len)
        scheduler.add(request(0, 10, max_tokens=None))
        outputs = [output for _ in range(expected - 10) for output in step(scheduler, 50)]
        assert [output.finish_reason for output in outputs[:-1]] == [None] * (expected - 11)
        assert outputs[-1].finish_reason == "length"
