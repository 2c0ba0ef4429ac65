"""Running statistics of activations: any number of tokens, in memory that does not grow."""

from __future__ import annotations

import math

import msgspec
import torch
from torch import Tensor

# A float32's upper 16 bits are a bfloat16, and order positive numbers as their values do
_SHIFT = 16
_NUM_BINS = 1 << 15
_FIRST_NOT_FINITE = 0x7F80


class Summary(msgspec.Struct, frozen=True):
    mean: float
    deviation: float  # the population's


class Moments:
    """Mean and deviation of all that was added."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, 0.0, 0.0

    def add(self, values: Tensor) -> None:
        values = values.double()
        self._count += values.numel()
        self._sum += values.sum().item()
        self._squares += values.square().sum().item()

    def summary(self) -> Summary:
        if not self._count:
            return Summary(math.nan, math.nan)
        mean = self._sum / self._count
        return Summary(mean, max(0.0, self._squares / self._count - mean * mean) ** 0.5)


class Histogram:
    """How often each magnitude was seen, to bfloat16's resolution: for bfloat16 values exactly,
    else in bins at most 0.8% wide. A bin holds what truncates to the same bfloat16."""

    def __init__(self) -> None:
        self.counts = torch.zeros(_NUM_BINS, dtype=torch.int64)

    def add(self, magnitudes: Tensor) -> None:
        """magnitudes: at least 0, of any floating type and shape."""
        bits = magnitudes.float().contiguous().view(torch.int32) >> _SHIFT
        self.counts += torch.bincount(bits.flatten(), minlength=_NUM_BINS).cpu()

    @property
    def is_finite(self) -> bool:
        return not self.counts[_FIRST_NOT_FINITE:].any()

    def quantile(self, share: float) -> float:
        """The least magnitude, truncated to bfloat16, that at least `share` of all are up to.

        The share of nothing is 0, and its quantile the least of all.
        """
        return _float32_of(self._bin(share) << _SHIFT)

    def threshold(self, share: float) -> float:
        """A threshold that at least `share` of all magnitudes are up to, and no more of them than
        one bin adds. Of no share it is below all: 0 counts itself, so it is -1."""
        if share <= 0:
            return -1.0
        return _float32_of((self._bin(share) << _SHIFT) | ((1 << _SHIFT) - 1))

    def _bin(self, share: float) -> int:
        cumulative = self.counts.cumsum(0)
        wanted = max(1, math.ceil(share * int(cumulative[-1])))
        return int(torch.searchsorted(cumulative, wanted).clamp_max(_FIRST_NOT_FINITE - 1))


def _float32_of(bits: int) -> float:
    return torch.tensor(bits, dtype=torch.int32).view(torch.float32).item()
