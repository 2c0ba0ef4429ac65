"""What a decode step costs on either path: measured at the start, corrected by every step since."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

_WEIGHT = 0.1  # of the newest step in the corrections' moving averages
_MOST = 0.5  # of a step's deviation, as a logarithm: one that was held up says little


class SparseCosts(msgspec.Struct, frozen=True):
    """Of one number of tokens."""

    tokens: int
    densities: list[float]  # rising: shares of the layers' weights that a step reads
    seconds: list[float]


class CostTable(msgspec.Struct, frozen=True):
    """Seconds of a step in which every sequence decodes one token, by their number."""

    tokens: list[int]  # rising
    dense: list[float]  # seconds
    sparse: list[SparseCosts]  # by rising tokens

    def dense_seconds(self, tokens: int) -> float:
        return _between(self.tokens, self.dense, tokens)

    def sparse_seconds(self, tokens: int, density: float) -> float:
        counts = [costs.tokens for costs in self.sparse]
        seconds = [_between(costs.densities, costs.seconds, density) for costs in self.sparse]
        return _between(counts, seconds, tokens)


class Prediction(msgspec.Struct, frozen=True):
    """Seconds that a step will take on each path."""

    dense: float
    sparse: float


class Predictor:
    """The table's predictions, each path's corrected by how its last steps compared with them.

    A factor for each path, since contexts grow, clocks change and other processes come and go:
    an exponentially weighted mean of the logarithms of measured over predicted.
    """

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._logarithms = {"dense": 0.0, "sparse": 0.0}

    def predict(self, tokens: int, density: float) -> Prediction:
        return Prediction(
            self._table.dense_seconds(tokens) * math.exp(self._logarithms["dense"]),
            self._table.sparse_seconds(tokens, density) * math.exp(self._logarithms["sparse"]),
        )

    def observe(self, prediction: Prediction, *, sparse: bool, seconds: float) -> None:
        """What a step took that was predicted before. Times that are not above 0 say nothing."""
        predicted = prediction.sparse if sparse else prediction.dense
        if seconds <= 0 or predicted <= 0:
            return
        apart = math.log(seconds / predicted)
        self._logarithms["sparse" if sparse else "dense"] += _WEIGHT * max(
            -_MOST, min(_MOST, apart)
        )


def _between(at: Sequence[float], values: Sequence[float], x: float) -> float:
    """Piecewise linear, constant outside."""
    right = bisect_left(at, x)
    if right == 0:
        return values[0]
    if right == len(at):
        return values[-1]
    left = right - 1
    share = (x - at[left]) / (at[right] - at[left])
    return values[left] + share * (values[right] - values[left])
