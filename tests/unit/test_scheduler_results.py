"""What the scheduler makes of results: how requests end, and several tokens a row."""

from __future__ import annotations

import pytest
from inferx.engine.messages import RequestOutput, RequestStart
from inferx.engine.plan import StepResult, TokenLogprobs
from scheduling import EOS, make_scheduler, planned, request, result, rows, step, without_start

# The end of a request


@pytest.mark.parametrize("token", EOS)
def test_every_eos_id_stops(token: int) -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3))
    assert step(scheduler, token) == [RequestOutput(0, [token], "stop", token)]
    assert not scheduler.has_unfinished


def test_ignore_eos_ignores_them_all_and_keeps_stop_token_ids() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3, ignore_eos=True, stop_token_ids=(9,)))
    assert step(scheduler, 2) == [RequestOutput(0, [2])]
    assert step(scheduler, 3) == [RequestOutput(0, [3])]
    assert step(scheduler, 9) == [RequestOutput(0, [9], "stop", 9)]


def test_stop_token_ids_come_on_top_of_eos() -> None:
    scheduler = make_scheduler()
    for uid in (0, 1):
        scheduler.add(request(uid, 3, stop_token_ids=(9,)))
    assert step(scheduler, 9, 3) == [
        RequestOutput(0, [9], "stop", 9),
        RequestOutput(1, [3], "stop", 3),
    ]


def test_min_tokens_counts_outputs_only_and_nothing_stops_before_it() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3, min_tokens=2, stop_token_ids=(9,)))
    assert step(scheduler, 2) == [RequestOutput(0, [2])]
    assert step(scheduler, 9) == [RequestOutput(0, [9])]
    assert step(scheduler, 9) == [RequestOutput(0, [9], "stop", 9)]


def test_a_stop_token_at_the_full_length_is_a_stop() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3, max_tokens=1))
    assert step(scheduler, 2) == [RequestOutput(0, [2], "stop", 2)]


# When a request began


def test_the_first_tokens_bring_how_long_the_request_waited_and_was_prefilled() -> None:
    now = 100.0
    scheduler = make_scheduler(max_num_seqs=1, clock=lambda: now)
    scheduler.add(request(0, 3, max_tokens=2))
    scheduler.add(request(1, 3, max_tokens=1))
    now = 102.0
    planned(scheduler)
    now = 102.5
    (output,) = scheduler.update(result(9))
    assert output.start == RequestStart(queue=2.0, prefill=0.5, cached_tokens=0)
    now = 103.0
    planned(scheduler)
    (output,) = scheduler.update(result(9))
    assert output.start is None
    planned(scheduler)
    now = 104.0
    (output,) = scheduler.update(result(9))
    assert output.start == RequestStart(queue=3.0, prefill=1.0, cached_tokens=0)


# Several tokens a row


def logprobs_of(tokens: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(-1.0, 1, [token], [-1.0]) for token in tokens]


def test_several_tokens_of_a_row_count_as_computed_but_for_the_last() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3))
    planned(scheduler)
    assert without_start(scheduler.update(result([9, 8, 7]))) == [RequestOutput(0, [9, 8, 7])]
    assert rows(planned(scheduler)) == [(0, 5, 1, True)]


def test_what_follows_a_stop_token_is_cut_with_its_logprobs() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3, logprobs=1))
    planned(scheduler)
    tokens = [9, 2, 7]
    assert without_start(scheduler.update(StepResult([tokens], [logprobs_of(tokens)]))) == [
        RequestOutput(0, [9, 2], "stop", 2, logprobs_of([9, 2]))
    ]
    assert scheduler.stats().generated_tokens == 2


def test_what_exceeds_the_length_is_cut() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3, max_tokens=2))
    planned(scheduler)
    assert without_start(scheduler.update(result([9, 8, 7]))) == [
        RequestOutput(0, [9, 8], "length")
    ]


def test_several_tokens_are_refused_while_a_later_row_is_in_flight() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 3))
    planned(scheduler)
    planned(scheduler)
    with pytest.raises(ValueError, match="successor is in flight"):
        scheduler.update(result([9, 8]))


def test_more_tokens_than_there_are_pages_for_are_refused() -> None:
    scheduler = make_scheduler()
    scheduler.add(request(0, 14))
    planned(scheduler)
    with pytest.raises(ValueError, match="more tokens came for a row than there were pages"):
        scheduler.update(result([9, 8, 7, 6]))
