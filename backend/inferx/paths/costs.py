"""What a decode step costs on either path: measured at the start, corrected by every step since."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

_WEIGHT = 0.1  # of a step in its path's correction, where the step before was on it too
_MOST_WEIGHT = 0.5  # where the path was not measured for long
_FARTHEST = 0.7  # logarithm of measured over predicted: a step that was held up says little


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

    A factor for each path, since contexts grow, clocks change and other processes come and go.
    """

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._dense, self._sparse = _Correction(), _Correction()

    def predict(self, tokens: int, density: float) -> Prediction:
        return Prediction(
            self._table.dense_seconds(tokens) * self._dense.factor,
            self._table.sparse_seconds(tokens, density) * self._sparse.factor,
        )

    def observe(self, prediction: Prediction, *, sparse: bool, seconds: float) -> None:
        """What a step took that was predicted before. Times that are not above 0 say nothing."""
        predicted = prediction.sparse if sparse else prediction.dense
        if seconds <= 0 or predicted <= 0:
            return
        taken, other = (self._sparse, self._dense) if sparse else (self._dense, self._sparse)
        taken.learn(math.log(seconds / predicted))
        other.unseen += 1


class _Correction:
    """An exponentially weighted mean of the logarithms of measured over predicted; the longer
    nothing was measured, the more the next step weighs."""

    def __init__(self) -> None:
        self._logarithm = 0.0
        self.unseen = 0  # steps since the last one

    @property
    def factor(self) -> float:
        return math.exp(self._logarithm)

    def learn(self, logarithm: float) -> None:
        weight = min(_MOST_WEIGHT, _WEIGHT * (1 + self.unseen / 8))
        self._logarithm += weight * max(-_FARTHEST, min(_FARTHEST, logarithm))
        self.unseen = 0


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
