from __future__ import annotations

import msgspec
from inferx.engine.messages import STEP_TIME_BOUNDS, EngineStats
from inferx.engine.restarts import WINDOW, RestartBudget
from inferx.engine.stats import after_end, total


def test_pauses_grow_and_end_with_the_budget():
    budget = RestartBudget(5)
    assert [budget.next_delay(float(i)) for i in range(6)] == [0.1, 0.4, 1.6, 6.4, 10.0, None]


def test_restarts_older_than_the_window_are_forgotten():
    budget = RestartBudget(1)
    assert budget.next_delay(0.0) == 0.1
    assert budget.next_delay(WINDOW) is None
    assert budget.next_delay(WINDOW + 1) == 0.1


def test_a_budget_of_zero_restarts_nothing():
    assert RestartBudget(0).next_delay(0.0) is None


def counts(*first: int) -> tuple[int, ...]:
    return (*first, *[0] * (len(STEP_TIME_BOUNDS) + 1 - len(first)))


def test_counters_go_on_over_the_end_of_an_engine_and_gauges_do_not():
    steps = {"steps": 10, "generated_tokens": 30, "step_seconds": 0.5}
    first = EngineStats(running=3, batch_size=3, used_blocks=7, memory_peak=8, **steps)
    first = msgspec.structs.replace(first, step_time_counts=counts(9, 1))
    ended = after_end(first)
    assert ended == EngineStats(**steps, step_time_counts=counts(9, 1))
    second = EngineStats(
        running=1, free_blocks=9, steps=2, step_seconds=0.25, step_time_counts=counts(0, 2)
    )
    assert total(ended, second) == EngineStats(
        running=1,
        free_blocks=9,
        steps=12,
        generated_tokens=30,
        step_seconds=0.75,
        step_time_counts=counts(9, 3),
    )
