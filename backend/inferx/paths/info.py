"""What an engine's sparse path can do: its calibrated rows, and what a step costs on it."""

from __future__ import annotations

import math

import msgspec

from inferx.paths.costs import CostTable


class SparseRow(msgspec.Struct, frozen=True):
    """One calibration: its thresholds are known by the ratio of weights that they leave unread.

    The lists have an entry for each site, in the order of a forward pass, and are of what a token
    shows under these thresholds on the calibration's held-out text.
    """

    target: float
    growth: float  # of perplexity, relative
    share_means: list[float]  # of the masked share of channels
    share_deviations: list[float]
    energy_means: list[float]  # of rho
    energy_deviations: list[float]


class SparsePath(msgspec.Struct, frozen=True):
    rows: list[SparseRow]  # by rising target
    site_weights: list[float]  # the part of the layers' weights that each site's product reads
    sites_per_layer: int
    max_tokens: int  # of a step that can take this path
    costs: CostTable

    @property
    def targets(self) -> list[float]:
        return [row.target for row in self.rows]

    def index_of(self, ratio: float) -> int | None:
        """The row of a ratio; None where there is none."""
        for index, row in enumerate(self.rows):
            if math.isclose(row.target, ratio, abs_tol=1e-6):
                return index
        return None

    def sparsest(self, max_growth: float) -> int | None:
        """The sparsest row that costs no more perplexity; None where all do."""
        within = [i for i, row in enumerate(self.rows) if row.growth <= max_growth]
        return max(within, default=None)

    def expected_density(self, row: int, tokens: int) -> float:
        """The share of the layers' weights that `tokens` tokens read together, were each one's
        channels drawn alone."""
        shares = zip(self.site_weights, self.rows[row].share_means, strict=True)
        return sum(weight * (1 - share**tokens) for weight, share in shares)
