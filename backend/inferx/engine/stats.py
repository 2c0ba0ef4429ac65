"""EngineStats over the lives of several engine processes: counters only ever grow."""

from __future__ import annotations

import msgspec

from inferx.engine.messages import EngineStats

_GAUGES = ("running", "waiting", "free_blocks", "cached_blocks", "used_blocks")
_COUNTERS = tuple(name for name in EngineStats.__struct_fields__ if name not in _GAUGES)


def after_end(stats: EngineStats) -> EngineStats:
    """What remains of the stats when the process is gone: the counters."""
    return msgspec.structs.replace(stats, **dict.fromkeys(_GAUGES, 0))


def total(ended: EngineStats, current: EngineStats) -> EngineStats:
    """The gauges of `current`, and its counters on top of those of the engines that ended."""
    counters = {name: getattr(ended, name) + getattr(current, name) for name in _COUNTERS}
    return msgspec.structs.replace(current, **counters)
