"""A sparse path of eight layers with plain numbers, and probes of it."""

from __future__ import annotations

import numpy as np
from inferx.paths.costs import CostTable, SparseCosts
from inferx.paths.info import SparsePath, SparseRow
from inferx.paths.probe import StepProbe

NUM_SITES = 16  # eight layers of two


def make_costs(sparse_at_one: float = 0.5) -> CostTable:
    """A dense step takes a second; a sparse one, from 0.4 s up, as much as it reads more, times
    the number of tokens."""
    return CostTable(
        tokens=[1, 2, 4],
        dense=[1.0, 1.0, 1.0],
        sparse=[
            SparseCosts(tokens, [0.0, 1.0], [0.4 * tokens, (2 * sparse_at_one - 0.4) * tokens])
            for tokens in (1, 2, 4)
        ],
    )


def make_row(target: float, growth: float = 0.01) -> SparseRow:
    return SparseRow(
        target=target,
        growth=growth,
        share_means=[target] * NUM_SITES,
        share_deviations=[0.1] * NUM_SITES,
        energy_means=[target / 10] * NUM_SITES,
        energy_deviations=[0.01] * NUM_SITES,
    )


def make_path(*rows: SparseRow, costs: CostTable | None = None, max_tokens: int = 4) -> SparsePath:
    return SparsePath(
        rows=list(rows) or [make_row(0.25), make_row(0.5, growth=0.1)],
        site_weights=[1 / NUM_SITES] * NUM_SITES,
        sites_per_layer=2,
        max_tokens=max_tokens,
        costs=costs or make_costs(),
    )


def make_probe(
    row: SparseRow,
    step: int = 1,
    *,
    share: float = 0.0,
    energy: float = 0.0,
    num_tokens: int = 1,
    num_broken: int = 0,
) -> StepProbe:
    """share, energy: how far these are from the calibration, in its deviations."""
    shares = np.full(NUM_SITES, row.target + 0.1 * share)
    return StepProbe(
        step,
        row.target,
        num_tokens,
        masked_shares=shares,
        union_densities=1 - shares,
        masked_energies=np.full(NUM_SITES, row.target / 10 + 0.01 * energy),
        num_broken=num_broken,
    )
