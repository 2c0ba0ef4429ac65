"""What a decode step costs on each path: measured on the loaded model, before the first request."""

from __future__ import annotations

from collections.abc import Callable

from inferx.paths.costs import CostTable, SparseCosts
from inferx.sparse.serving import MAX_TOKENS, MaskedInputs

_TIMES = 7  # that a step is measured, behind one that is not
_NOTHING, _EVERYTHING = -1.0, float("inf")  # thresholds that no score, and every score, is up to

TimeStep = Callable[[int, bool], float]  # tokens, whether it is masked: seconds of one step


def measure_costs(time_step: TimeStep, masked: MaskedInputs, max_num_seqs: int) -> CostTable:
    """`time_step` runs a step of so many sequences, one token each."""
    counts = sorted({min(tokens, max_num_seqs) for tokens in (1, 2, MAX_TOKENS)})
    return CostTable(
        tokens=counts,
        dense=[_seconds(time_step, tokens, False) for tokens in counts],
        sparse=[_sparse_costs(time_step, masked, tokens) for tokens in counts],
    )


def _sparse_costs(time_step: TimeStep, masked: MaskedInputs, tokens: int) -> SparseCosts:
    """At the densities of every row, and of masks of nothing and of everything."""
    points = []
    for threshold in (_NOTHING, *masked.targets, _EVERYTHING):
        if threshold in masked.targets:
            masked.select(threshold)
        else:
            masked.select_all(threshold)
        seconds = _seconds(time_step, tokens, True)
        points.append((masked.union_density, seconds))
    densities, seconds_of = zip(*sorted(points), strict=True)
    return SparseCosts(tokens, list(densities), list(seconds_of))


def _seconds(time_step: TimeStep, tokens: int, is_masked: bool) -> float:
    """The quickest: whatever else the machine does only ever holds a step up."""
    time_step(tokens, is_masked)
    return min(time_step(tokens, is_masked) for _ in range(_TIMES))
