"""EngineStats over the lives of several engine processes: counters only ever grow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from inferx.engine.messages import EngineStats, SparseStats

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
    name
    for name in EngineStats.__struct_fields__
    if name not in (*_GAUGES, "sparse", "step_time_counts")
)
_SPARSE_GAUGES = ("union_density", "masked_energy")
_SPARSE_COUNTERS = tuple(
    name for name in SparseStats.__struct_fields__ if name not in _SPARSE_GAUGES
)


def after_end(stats: EngineStats) -> EngineStats:
    """What remains of the stats when the process is gone: the counters."""
    sparse = msgspec.structs.replace(stats.sparse, **dict.fromkeys(_SPARSE_GAUGES, 0.0))
    return msgspec.structs.replace(stats, **dict.fromkeys(_GAUGES, 0), sparse=sparse)


def total(ended: EngineStats, current: EngineStats) -> EngineStats:
    """The gauges of `current`, and its counters on top of those of the engines that ended."""
    counters = _sums(_COUNTERS, ended, current)
    sparse = msgspec.structs.replace(
        current.sparse, **_sums(_SPARSE_COUNTERS, ended.sparse, current.sparse)
    )
    counts = zip(ended.step_time_counts, current.step_time_counts, strict=True)
    return msgspec.structs.replace(
        current, **counters, sparse=sparse, step_time_counts=tuple(a + b for a, b in counts)
    )


def _sums(names: Iterable[str], one: object, other: object) -> dict[str, Any]:
    return {name: getattr(one, name) + getattr(other, name) for name in names}
