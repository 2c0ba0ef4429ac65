"""Whether activations are still those that a row was calibrated on.

Two numbers of each site are watched: the masked share of channels, S, and the masked energy, rho.
Each is put as its distance from the calibration's mean in the calibration's deviations; a layer's
is the mean over its sites. A rule looks at these step by step.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from inferx.paths.info import SparseRow
from inferx.paths.probe import StepProbe

Array = np.ndarray
RuleName = Literal["page-hinkley", "ewma", "variance"]

WINDOW = 64  # steps
VARIANCE = 0.023  # of a layer's S within the window
_LAYERS = 0.25  # of all, which cumulative sums have to agree in
_FARTHEST = 4.0  # deviations that one token can count for
_LEAST_DEVIATION = 1e-4  # a site that never varied in the calibration may vary by this


class Rule(Protocol):
    def update(self, distances: Array, shares: Array) -> bool:
        """Takes a step, says whether activations have drifted.

        distances: [2, num_layers], of S and of rho, in deviations: either is enough; shares: S
        itself, [num_layers].
        """
        ...


class PageHinkley:
    """Page's cumulative sums in both directions (Biometrika 41, 1954; Hinkley, ibid. 58, 1971):
    what goes beyond `tolerance` adds up, and more than `limit` of it in a quarter of the layers is
    drift. Neighbouring tokens are alike, so that a passage of the calibration's own text may
    gather two dozen."""

    def __init__(self, *, tolerance: float = 0.4, limit: float = 35.0) -> None:
        self._tolerance, self._limit = tolerance, limit
        self._up: Array | float = 0.0
        self._down: Array | float = 0.0

    def update(self, distances: Array, shares: Array) -> bool:
        self._up = np.maximum(0.0, self._up + distances - self._tolerance)
        self._down = np.maximum(0.0, self._down - distances - self._tolerance)
        beyond = np.maximum(self._up, self._down) > self._limit
        return bool((beyond.mean(-1) > _LAYERS).any())


class Ewma:
    """A moving average with exponential weights (Roberts, Technometrics 1, 1959), farther than
    `limit` from the calibration: the root of its mean square over the layers."""

    def __init__(self, *, weight: float = 0.01, limit: float = 0.4) -> None:
        self._weight, self._limit = weight, limit
        self._mean: Array | float = 0.0

    def update(self, distances: Array, shares: Array) -> bool:
        self._mean = (1 - self._weight) * self._mean + self._weight * distances
        return bool((np.square(self._mean).mean(-1) > self._limit**2).any())


class Variance:
    """The variance of some layer's S over the last WINDOW steps is above VARIANCE."""

    def __init__(self) -> None:
        self._steps: list[Array] = []

    def update(self, distances: Array, shares: Array) -> bool:
        self._steps = [*self._steps[1 - WINDOW :], shares]
        full = len(self._steps) == WINDOW
        return full and bool((np.var(self._steps, axis=0) > VARIANCE).any())


RULES: dict[RuleName, type[PageHinkley | Ewma | Variance]] = {
    "page-hinkley": PageHinkley,
    "ewma": Ewma,
    "variance": Variance,
}


class DriftMonitor:
    """Watches the steps of one row. Starts anew after a drift."""

    def __init__(self, row: SparseRow, sites_per_layer: int, rule: RuleName) -> None:
        self._rule_name = rule
        self._rule: Rule = RULES[rule]()
        watched = np.reshape(row.share_means, (-1, sites_per_layer)) > 0  # a site may stay dense
        self._weights = watched / np.maximum(1, watched.sum(-1, keepdims=True))
        self._means = np.array([row.share_means, row.energy_means])
        deviations = np.array([row.share_deviations, row.energy_deviations])
        self._deviations = np.maximum(deviations, _LEAST_DEVIATION)

    def update(self, probe: StepProbe) -> bool:
        """Whether the row's activations have drifted with this step."""
        found = np.stack([probe.masked_shares, probe.masked_energies])
        # A mean over independent tokens varies less than one of them
        deviations = self._deviations / probe.num_tokens**0.5
        distances = ((found - self._means) / deviations).clip(-_FARTHEST, _FARTHEST)
        by_layer = (distances.reshape(2, *self._weights.shape) * self._weights).sum(-1)
        shares = (probe.masked_shares.reshape(self._weights.shape) * self._weights).sum(-1)
        drifted = self._rule.update(by_layer, shares)
        if drifted:
            self._rule = RULES[self._rule_name]()
        return drifted
