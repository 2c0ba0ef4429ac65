"""What remains of an engine's counts when it ends, and what the next one adds to it."""

from __future__ import annotations

from inferx.engine.messages import EngineStats, SparseStats
from inferx.engine.stats import after_end, total

STATS = EngineStats(
    running=3, used_blocks=4, steps=10, step_seconds=1.5,
    step_time_counts=(0, 1, 2, *[0] * 9, 7),
    sparse=SparseStats(union_density=0.7, masked_energy=0.1, steps=4, drifts=1, regret_seconds=0.5),
)  # fmt: skip


def test_counters_outlive_an_engine_and_gauges_do_not() -> None:
    left = after_end(STATS)
    assert (left.running, left.used_blocks, left.steps) == (0, 0, 10)
    assert left.step_time_counts == STATS.step_time_counts
    assert left.sparse == SparseStats(steps=4, drifts=1, regret_seconds=0.5)


def test_the_next_engine_counts_on() -> None:
    both = total(after_end(STATS), STATS)
    assert (both.running, both.steps, both.step_seconds) == (3, 20, 3.0)
    assert both.step_time_counts == (0, 2, 4, *[0] * 9, 14)
    assert both.sparse == SparseStats(
        union_density=0.7, masked_energy=0.1, steps=8, drifts=2, regret_seconds=1.0
    )
