from __future__ import annotations

from inferx.engine.messages import EngineStats
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


def test_counters_go_on_over_the_end_of_an_engine_and_gauges_do_not():
    first = EngineStats(running=3, used_blocks=7, steps=10, generated_tokens=30, step_seconds=0.5)
    ended = after_end(first)
    assert ended == EngineStats(steps=10, generated_tokens=30, step_seconds=0.5)
    second = EngineStats(running=1, free_blocks=9, steps=2, generated_tokens=4, step_seconds=0.25)
    assert total(ended, second) == EngineStats(
        running=1, free_blocks=9, steps=12, generated_tokens=34, step_seconds=0.75
    )
