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
    dense, sparse = zip(*(_costs(time_step, masked, tokens) for tokens in counts), strict=True)
    return CostTable(counts, list(dense), list(sparse))


def _costs(time_step: TimeStep, masked: CalibratedRows, tokens: int) -> tuple[float, SparseCosts]:
    """Seconds of a dense step; and of sparse ones at the densities of every row, and of masks of
    nothing and of everything. They take turns, so that a machine whose pace changes meanwhile, as
    others' work does it, slows down both."""
    on_dense: list[float] = []
    points = []
    for threshold in (_NOTHING, *masked.targets, _EVERYTHING):
        if threshold in masked.targets:
            masked.select(threshold)
        else:
            masked.select_all(threshold)
        on_sparse = []
        for _ in range(1 + _TIMES):
            on_dense.append(time_step(tokens, False))
            on_sparse.append(time_step(tokens, True))
        points.append((masked.union_density, _quickest(on_sparse)))
    densities, seconds = zip(*sorted(points), strict=True)
    return _quickest(on_dense), SparseCosts(tokens, list(densities), list(seconds))


def _quickest(seconds: list[float]) -> float:
    """Behind the first: whatever else the machine does only ever holds a step up."""
    return min(seconds[1:])


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
