"""What the scheduler plans, to the row and the page."""

from __future__ import annotations

import pytest
from inferx.engine.messages import EngineStats, RequestOutput
from inferx.engine.plan import NewRow, Plan
from inferx.engine.sampling import SamplingParams
from scheduling import make_scheduler, planned, prompt_of, request, result, rows, without_start

# Prefill, decode and their mixture


def test_a_plan_is_plain_data() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(5, [11, 12, 13]))
    assert scheduler.plan() == Plan(
        step=1,
        slots=[0],
        starts=[0],
        num_tokens=[3],
        samples=[True],
        num_decodes=0,
        new_rows=[NewRow(0, [11, 12, 13], 3, SamplingParams(max_tokens=20, seed=7), 7)],
        block_updates=[(0, 0, [0])],
        page_copies=[],
    )
    assert scheduler.plan() == Plan(
        step=2,
        slots=[0],
        starts=[3],
        num_tokens=[1],
        samples=[True],
        num_decodes=1,
        new_rows=[],
        block_updates=[],
        page_copies=[],
    )


def test_a_plan_stays_as_it_was_made() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, [11] * 16))
    plan = planned(scheduler)
    scheduler.update(result(9))
    planned(scheduler)
    assert plan.new_rows[0].token_ids == [11] * 16
    assert plan.block_updates == [(0, 0, [0])]


def test_nothing_to_do_is_no_plan() -> None:
    scheduler = make_scheduler()
    assert scheduler.plan() is None
    assert scheduler.stats() == EngineStats(free_blocks=64)


def test_a_prompt_above_the_budget_is_computed_in_chunks_and_samples_after_the_last() -> None:
    scheduler = make_scheduler(budget=16)
    scheduler.add(request(0, 40))
    first = planned(scheduler)
    assert rows(first) == [(0, 0, 16, False)]
    assert first.block_updates == [(0, 0, [0, 1, 2])], "pages for the whole prompt at once"
    assert rows(planned(scheduler)) == [(0, 16, 16, False)]
    assert rows(planned(scheduler)) == [(0, 32, 8, True)]
    assert rows(planned(scheduler)) == [(0, 40, 1, True)]
    assert scheduler.update(result()) == []
    assert scheduler.update(result()) == []
    assert without_start(scheduler.update(result(9))) == [RequestOutput(0, [9])]


def test_chunks_need_no_alignment() -> None:
    scheduler = make_scheduler(budget=7)
    scheduler.add(request(0, 10))
    assert rows(planned(scheduler)) == [(0, 0, 7, False)]
    assert rows(planned(scheduler)) == [(0, 7, 3, True)]


def test_a_step_holds_decodes_then_running_prefills_then_admissions() -> None:
    scheduler = make_scheduler(budget=20)
    scheduler.add(request(0, 4))
    scheduler.add(request(1, 30))
    scheduler.add(request(2, 9))
    assert rows(planned(scheduler)) == [(0, 0, 4, True), (1, 0, 16, False)]
    second = planned(scheduler)
    assert rows(second) == [(0, 4, 1, True), (1, 16, 14, True), (2, 0, 5, False)]
    assert second.num_decodes == 1
    third = planned(scheduler)
    assert rows(third) == [(0, 5, 1, True), (1, 30, 1, True), (2, 5, 4, True)]
    assert third.num_decodes == 2


def test_the_budget_bounds_decodes_too() -> None:
    scheduler = make_scheduler(budget=2)
    for uid in range(3):
        scheduler.add(request(uid, 1))
    assert rows(planned(scheduler)) == [(0, 0, 1, True), (1, 0, 1, True)]
    assert rows(planned(scheduler)) == [(0, 1, 1, True), (1, 1, 1, True)]
    assert scheduler.stats().waiting == 1, "nothing is admitted that could not go on"


def test_a_running_prefill_gets_a_token_in_every_step_and_comes_before_admissions() -> None:
    scheduler = make_scheduler(budget=3)
    scheduler.add(request(0, 1))
    scheduler.add(request(1, 1))
    scheduler.add(request(2, 3))
    assert rows(planned(scheduler)) == [(0, 0, 1, True), (1, 0, 1, True), (2, 0, 1, False)]
    scheduler.add(request(3, 1, priority=-1))
    assert rows(planned(scheduler)) == [(0, 1, 1, True), (1, 1, 1, True), (2, 1, 1, False)]
    assert rows(planned(scheduler)) == [(0, 2, 1, True), (1, 2, 1, True), (2, 2, 1, True)]


def test_a_decode_gets_its_next_page_when_it_steps_over_the_edge() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 15))
    assert planned(scheduler).block_updates == [(0, 0, [0])]
    assert planned(scheduler).block_updates == [], "position 15 is in the first page"
    assert planned(scheduler).block_updates == [(0, 1, [1])]
    assert planned(scheduler).block_updates == []


# Order


def test_admission_is_by_priority_and_then_by_arrival() -> None:
    scheduler = make_scheduler(max_num_seqs=5)
    for uid, priority in enumerate([0, 1, -1, 0, -1]):
        scheduler.add(request(uid, [uid + 10], priority=priority))
    assert [row.token_ids for row in planned(scheduler).new_rows] == [[12], [14], [10], [13], [11]]


def test_decodes_are_in_order_too_whenever_they_came() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 1))
    planned(scheduler)
    scheduler.add(request(1, 1, priority=-1))
    planned(scheduler)
    assert planned(scheduler).slots == [1, 0]


def test_the_smallest_free_slot_is_taken_and_is_free_for_the_next_plan() -> None:
    scheduler = make_scheduler(max_num_seqs=3)
    for uid in range(5):
        scheduler.add(request(uid, 1))
    assert planned(scheduler).slots == [0, 1, 2]
    scheduler.abort(2)
    scheduler.abort(0)
    scheduler.add(request(5, 1))
    assert rows(planned(scheduler)) == [(1, 1, 1, True), (0, 0, 1, True), (2, 0, 1, True)]
    assert scheduler.stats().running == 3
    assert scheduler.stats().waiting == 1


def test_nobody_overtakes_a_request_that_waits_for_pages() -> None:
    scheduler = make_scheduler(4)
    scheduler.add(request(0, 20, max_tokens=2))
    planned(scheduler)
    scheduler.add(request(1, 40))
    scheduler.add(request(2, 1))
    assert rows(planned(scheduler)) == [(0, 20, 1, True)]
    # That was uid 0's last row: its slot and pages are uid 1's now, and uid 2 finds one to spare.
    assert rows(planned(scheduler)) == [(0, 0, 40, True)]
    assert scheduler.stats().waiting == 1


def test_admission_leaves_every_running_request_a_page_to_grow_into() -> None:
    scheduler = make_scheduler(6)
    scheduler.add(request(0, 10))
    scheduler.add(request(1, 10))
    scheduler.add(request(2, 30))  # 2 pages and 2 to spare: all that is left
    scheduler.add(request(3, 10))  # 1 page and 3 to spare: too many
    assert planned(scheduler).slots == [0, 1, 2]
    assert scheduler.stats().free_blocks == 2


# Overlap


def test_a_length_is_known_before_its_tokens_so_no_row_is_wasted() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3, max_tokens=2))
    assert rows(planned(scheduler)) == [(0, 0, 3, True)]
    assert rows(planned(scheduler)) == [(0, 3, 1, True)]
    assert scheduler.plan() is None
    assert (scheduler.num_in_flight, scheduler.has_unfinished) == (2, True)
    assert without_start(scheduler.update(result(9))) == [RequestOutput(0, [9])]
    assert without_start(scheduler.update(result(8))) == [RequestOutput(0, [8], "length")]
    assert (scheduler.num_in_flight, scheduler.has_unfinished) == (0, False)


def test_slot_and_pages_are_free_as_soon_as_the_last_token_is_planned() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(request(0, 3, max_tokens=1))
    scheduler.add(request(1, 3, max_tokens=1))
    assert planned(scheduler).slots == [0]
    assert scheduler.stats().used_blocks == 0
    second = planned(scheduler)
    assert rows(second) == [(0, 0, 3, True)]
    assert second.new_rows[0].token_ids == prompt_of(3, 2000)
    assert without_start(scheduler.update(result(9))) == [RequestOutput(0, [9], "length")]
    assert without_start(scheduler.update(result(8))) == [RequestOutput(1, [8], "length")]


def test_the_models_length_ends_a_request_like_max_tokens() -> None:
    scheduler = make_scheduler(max_model_len=5)
    scheduler.add(request(0, 3))
    planned(scheduler)
    planned(scheduler)
    assert scheduler.plan() is None
    assert without_start(scheduler.update(result(9))) == [RequestOutput(0, [9])]
    assert without_start(scheduler.update(result(8))) == [RequestOutput(0, [8], "length")]


def test_an_eos_costs_one_discarded_token() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3))
    scheduler.add(request(1, 3))
    planned(scheduler)
    planned(scheduler)
    assert without_start(scheduler.update(result(2, 9))) == [
        RequestOutput(0, [2], "stop", 2),
        RequestOutput(1, [9]),
    ]
    assert planned(scheduler).slots == [1]
    assert scheduler.update(result(8, 8)) == [RequestOutput(1, [8])], "uid 0's 8 is discarded"
    assert without_start(scheduler.update(result(7))) == [RequestOutput(1, [7])]
    assert scheduler.stats().generated_tokens == 4


def test_a_result_belongs_to_the_request_of_its_plan_though_the_slot_has_a_new_one() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(request(0, 3))
    planned(scheduler)
    scheduler.abort(0)
    scheduler.add(request(1, 3))
    assert planned(scheduler).slots == [0]
    assert scheduler.update(result(9)) == []
    assert without_start(scheduler.update(result(8))) == [RequestOutput(1, [8])]


def test_a_result_must_have_a_row_for_each_that_samples() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3))
    planned(scheduler)
    with pytest.raises(ValueError, match="shorter"):
        scheduler.update(result())
