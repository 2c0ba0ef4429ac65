"""Perplexity over windows of a text, and how far two of them are apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import torch
from torch import Tensor

_ROWS = 256  # logits at once
_NORMAL_95 = 1.96  # standard errors on either side that hold 95% of a normal distribution


def python_documentation() -> str:
    """0.5M characters of English about Python, which every Python brings."""
    import pydoc_data.topics

    topics = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def windows(ids: Sequence[int], length: int) -> list[list[int]]:
    """Token ids cut into windows of `length`; what is left at the end is dropped."""
    return [list(ids[at : at + length]) for at in range(0, len(ids) - length + 1, length)]


def surprise(hidden: Tensor, head: Callable[[Tensor], Tensor], tokens: Sequence[int]) -> float:
    """The sum of -log p of the tokens but the first, each as seen from the one before.

    hidden: [num_tokens, hidden_size], what `head` makes logits of.
    """
    targets = torch.tensor(tokens[1:], device=hidden.device)
    return sum(
        float(torch.nn.functional.cross_entropy(head(rows).float(), wanted, reduction="sum"))
        for rows, wanted in zip(hidden[:-1].split(_ROWS), targets.split(_ROWS), strict=True)
    )


class Growth(NamedTuple):
    """By how much a perplexity is higher than another, relative: 0.02 is 2% more."""

    mean: float
    standard_error: float  # of the mean difference of the windows' -log p

    @classmethod
    def between(cls, found: Sequence[float], base: Sequence[float]) -> Growth:
        """Of two models' mean -log p of the same windows, paired: what makes a window easy or
        hard for both is not counted as chance."""
        apart = [a - b for a, b in zip(found, base, strict=True)]
        error = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else math.inf
        return cls(math.expm1(fmean(apart)), error)

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95% confidence interval, from a normal distribution of the mean difference."""
        centre, reach = math.log1p(self.mean), _NORMAL_95 * self.standard_error
        return math.expm1(centre - reach), math.expm1(centre + reach)
