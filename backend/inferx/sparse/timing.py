"""What a decode step costs on each path: measured on the loaded model, before the first request."""

from __future__ import annotations

from collections.abc import Callable

from inferx.engine.plan import NewRow, Plan
from inferx.engine.sampling import SamplingParams
from inferx.paths.costs import CostTable, SparseCosts
from inferx.sparse.serving import MAX_TOKENS, CalibratedRows

_TIMES = 7  # that a step is measured, behind one that is not
_NOTHING, _EVERYTHING = -1.0, float("inf")  # thresholds that no score, and every score, is up to

TimeStep = Callable[[int, bool], float]  # tokens, whether it is masked: seconds of one step


def measure_costs(time_step: TimeStep, masked: CalibratedRows, max_num_seqs: int) -> CostTable:
    """`time_step` runs a step of so many sequences, one token each."""
    counts = sorted({min(tokens, max_num_seqs) for tokens in (1, 2, MAX_TOKENS)})
    return CostTable(
        tokens=counts,
        dense=[_seconds(time_step, tokens, False) for tokens in counts],
        sparse=[_sparse_costs(time_step, masked, tokens) for tokens in counts],
    )


def _sparse_costs(time_step: TimeStep, masked: CalibratedRows, tokens: int) -> SparseCosts:
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


def decode_plan(num_seqs: int, num_blocks: int, vocab_size: int, sparsity: float = 0.0) -> Plan:
    """One token of each of so many slots that nobody has yet, each another one."""
    params = SamplingParams(temperature=0)
    tokens = [(2 + 997 * slot) % vocab_size for slot in range(num_seqs)]
    ones = [1] * num_seqs
    return Plan(
        step=0, slots=list(range(num_seqs)), starts=[0] * num_seqs, num_tokens=ones,
        samples=[True] * num_seqs, num_decodes=num_seqs,
        new_rows=[NewRow(slot, [token], 1, params, 0) for slot, token in enumerate(tokens)],
        block_updates=[(slot, 0, [slot % num_blocks]) for slot in range(num_seqs)],
        page_copies=[], sparsity=sparsity,
    )  # fmt: skip
