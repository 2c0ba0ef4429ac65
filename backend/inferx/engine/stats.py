"""EngineStats over the lives of several engine processes: counters only ever grow."""

from __future__ import annotations

import msgspec

from inferx.engine.messages import EngineStats

_GAUGES = (
    "batch_size",
    "running",
    "waiting",
    "free_blocks",
    "cached_blocks",
    "used_blocks",
    "memory_resident",
    "memory_peak",
)
_COUNTERS = tuple(
    name for name in EngineStats.__struct_fields__ if name not in (*_GAUGES, "step_time_counts")
)


def after_end(stats: EngineStats) -> EngineStats:
    """What remains of the stats when the process is gone: the counters."""
    return msgspec.structs.replace(stats, **dict.fromkeys(_GAUGES, 0))


def total(ended: EngineStats, current: EngineStats) -> EngineStats:
    """The gauges of `current`, and its counters on top of those of the engines that ended."""
    counters = {name: getattr(ended, name) + getattr(current, name) for name in _COUNTERS}
    counts = zip(ended.step_time_counts, current.step_time_counts, strict=True)
    return msgspec.structs.replace(
        current, **counters, step_time_counts=tuple(a + b for a, b in counts)
    )
