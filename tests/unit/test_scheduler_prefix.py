"""Prefix caching as the scheduler uses it: what is shared, when, and with whom."""

from __future__ import annotations

from inferx.engine.messages import EngineRequest, RequestOutput
from inferx.engine.scheduler import Scheduler
from scheduling import (
    EOS,
    make_scheduler,
    planned,
    prompt_of,
    request,
    result,
    rows,
    step,
    without_start,
)


def serve(scheduler: Scheduler, *requests: EngineRequest) -> None:
    """To their length, one after the other, without overlap; outputs are 50, 51, ..."""
    for each in requests:
        scheduler.add(each)
        for token in range(50, 50 + each.sampling.max_tokens):
            planned(scheduler)
            scheduler.update(result(token))
    assert not scheduler.has_unfinished


def test_a_follow_up_shares_full_pages_of_prompt_and_output() -> None:
    scheduler = make_scheduler()
    serve(scheduler, request(0, prompt_of(20), max_tokens=14))
    assert (scheduler.stats().cached_blocks, scheduler.stats().used_blocks) == (2, 0)
    scheduler.add(request(1, [*prompt_of(20), *range(50, 64), 7, 7]))
    plan = planned(scheduler)
    assert rows(plan) == [(0, 32, 4, True)]
    assert plan.block_updates == [(0, 0, [0, 1, 2])]
    stats = scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (56, 32)


def test_the_pages_that_an_output_fills_are_shared_while_it_grows() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, prompt_of(20)))
    for token in range(50, 63):
        step(scheduler, token)
    scheduler.add(request(1, [*prompt_of(20), *range(50, 62), 7, 7]))
    assert rows(planned(scheduler)) == [(0, 32, 1, True), (1, 32, 2, True)]


def test_a_page_that_the_stop_token_fills_while_it_is_in_flight_is_shared() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, prompt_of(15)))
    planned(scheduler)
    planned(scheduler)  # computes the token that turns out to be the stop token
    scheduler.update(result(EOS[0]))
    scheduler.add(request(1, [*prompt_of(15), EOS[0], 7]))
    assert rows(planned(scheduler)) == [(0, 16, 1, True)]


def test_at_least_one_token_is_computed() -> None:
    scheduler = make_scheduler()
    serve(scheduler, request(0, prompt_of(32), max_tokens=1))
    scheduler.add(request(1, prompt_of(32)))
    assert rows(planned(scheduler)) == [(0, 16, 16, True)]


def test_a_prefill_under_way_can_be_shared_page_by_page() -> None:
    scheduler = make_scheduler(budget=20)
    scheduler.add(request(0, prompt_of(64)))
    assert rows(planned(scheduler)) == [(0, 0, 20, False)]
    scheduler.abort(0)
    scheduler.add(request(1, prompt_of(64)))
    assert rows(planned(scheduler)) == [(0, 16, 20, False)]


def test_of_equal_prompts_one_is_computed_and_the_others_wait_one_step_for_it() -> None:
    scheduler = make_scheduler()
    for uid in range(3):
        scheduler.add(request(uid, prompt_of(20)))
    assert rows(planned(scheduler)) == [(0, 0, 20, True)]
    second = planned(scheduler)
    assert rows(second) == [(0, 20, 1, True), (1, 16, 4, True), (2, 16, 4, True)]
    assert second.block_updates == [(1, 0, [0, 2]), (2, 0, [0, 3])]
    assert without_start(scheduler.update(result(9))) == [RequestOutput(0, [9])]
    assert scheduler.stats().prefix_cache_hits == 32


def test_a_shared_page_outlives_the_request_that_computed_it() -> None:
    scheduler = make_scheduler()
    for uid in range(2):
        scheduler.add(request(uid, prompt_of(20)))
    planned(scheduler)
    planned(scheduler)
    scheduler.abort(0)
    assert (scheduler.stats().used_blocks, scheduler.stats().cached_blocks) == (2, 0)
    scheduler.abort(1)
    assert (scheduler.stats().used_blocks, scheduler.stats().cached_blocks) == (0, 1)


def test_nothing_is_shared_between_salts() -> None:
    scheduler = make_scheduler()
    serve(scheduler, request(0, prompt_of(40), max_tokens=1, cache_salt="a"))
    starts = {}
    for uid, salt in enumerate(["b", None, "a"], 1):
        scheduler.add(request(uid, prompt_of(40), cache_salt=salt))
        starts[salt] = planned(scheduler).starts[-1]
    assert starts == {"b": 0, None: 0, "a": 32}


def test_the_longest_unused_prefix_is_evicted_first_from_its_end() -> None:
    scheduler = make_scheduler(7)
    old, young = prompt_of(48, 100), prompt_of(48, 200)
    serve(scheduler, request(0, old, max_tokens=1), request(1, young, max_tokens=1))
    assert (scheduler.stats().free_blocks, scheduler.stats().cached_blocks) == (1, 6)
    serve(scheduler, request(2, 48, max_tokens=1))
    assert (scheduler.stats().free_blocks, scheduler.stats().cached_blocks) == (0, 7)
    scheduler.add(request(3, [*old, 1], max_tokens=1))
    assert planned(scheduler).starts == [16], "two of three pages went"
    scheduler.update(result(9))
    scheduler.add(request(4, [*young, 1], max_tokens=1))
    assert planned(scheduler).starts == [0], "all three went to the request before"


def test_larger_pages_are_shared_whole() -> None:
    scheduler = make_scheduler(block_size=64, budget=256, max_model_len=512)
    serve(scheduler, request(0, prompt_of(200), max_tokens=1))
    scheduler.add(request(1, [*prompt_of(180), 7]))
    assert rows(planned(scheduler)) == [(0, 128, 53, True)]


def test_without_prefix_caching_every_prompt_is_computed() -> None:
    scheduler = make_scheduler(caching=False)
    serve(scheduler, request(0, prompt_of(40), max_tokens=1))
    scheduler.add(request(1, prompt_of(40)))
    scheduler.add(request(2, prompt_of(20)))
    assert rows(planned(scheduler)) == [(0, 0, 40, True), (1, 0, 20, True)]
    stats = scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (0, 0)
    assert stats.cached_blocks == 0
