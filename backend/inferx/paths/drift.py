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
_FARTHEST = 4.0  # deviations that one token can count for
_LEAST_DEVIATION = 1e-4  # a site that never varied in the calibration may vary by this


class Rule(Protocol):
    def update(self, distances: Array, shares: Array) -> bool:
        """Takes a step, says whether activations have drifted.

        distances: [2, num_layers], of S and of rho, in deviations of one token; shares: S itself,
        [num_layers].
        """
        ...


class PageHinkley:
    """Page's cumulative sums in both directions (Biometrika 41, 1954; Hinkley 1971): what goes
    beyond `tolerance` adds up, and more than `limit` of it in most layers is drift."""

    def __init__(self, *, tolerance: float = 0.5, limit: float = 25.0) -> None:
        self._tolerance, self._limit = tolerance, limit
        self._up: Array | float = 0.0
        self._down: Array | float = 0.0

    def update(self, distances: Array, shares: Array) -> bool:
        self._up = np.maximum(0.0, self._up + distances - self._tolerance)
        self._down = np.maximum(0.0, self._down - distances - self._tolerance)
        return _in_most_layers(np.maximum(self._up, self._down) > self._limit)


class Ewma:
    """A moving average with exponential weights, farther than `limit` from the calibration in most
    layers (Roberts, Technometrics 1, 1959)."""

    def __init__(self, *, weight: float = 0.04, limit: float = 0.9) -> None:
        self._weight, self._limit = weight, limit
        self._mean: Array | float = 0.0

    def update(self, distances: Array, shares: Array) -> bool:
        self._mean = (1 - self._weight) * self._mean + self._weight * distances
        return _in_most_layers(np.abs(self._mean) > self._limit)


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
        self._per_layer = sites_per_layer
        self._means = np.array([row.share_means, row.energy_means])
        deviations = np.array([row.share_deviations, row.energy_deviations])
        self._deviations = np.maximum(deviations, _LEAST_DEVIATION)

    def update(self, probe: StepProbe) -> bool:
        """Whether the row's activations have drifted with this step."""
        found = np.stack([probe.masked_shares, probe.masked_energies])
        # A mean over independent tokens varies less than one of them
        deviations = self._deviations / probe.num_tokens**0.5
        distances = ((found - self._means) / deviations).clip(-_FARTHEST, _FARTHEST)
        by_layer = distances.reshape(2, -1, self._per_layer).mean(-1)
        shares = probe.masked_shares.reshape(-1, self._per_layer).mean(-1)
        drifted = self._rule.update(by_layer, shares)
        if drifted:
            self._rule = RULES[self._rule_name]()
        return drifted


def _in_most_layers(beyond: Array) -> bool:
    """beyond: [2, num_layers]; S or rho is enough."""
    return bool((beyond.mean(-1) > 0.5).any())
