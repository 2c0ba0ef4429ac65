"""How much of a model's sparsity each product of a layer takes.

TEAL's greedy search (arXiv 2408.14690, algorithm 1): in every step each product in turn is made
sparser by what saves the same number of weights, and the one that changes the layer's output
least keeps it. Layers are searched one after another, each on the dense output of those before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter

import torch
from torch import Tensor

from inferx.model.activations import PROJECTIONS, Projection, Site
from inferx.sparse.masking import Masked, Scoring, Several, Thresholds
from inferx.sparse.products import weight_shares
from inferx.sparse.statistics import Histogram
from inferx.sparse.windows import Window, WindowedModel

STEP = 0.025  # of a layer's weights
_MOST = 0.98  # of a product's channels
_ROUNDING = 1e-9
_HALVES = 5  # a step takes three; the next one takes them again, or one of them after two others

Shares = dict[Projection, float]  # of channels, masked


def layer_splits(
    windowed: WindowedModel,
    scoring: Scoring,
    histograms: Mapping[Site, Histogram],
    window: Window,
    targets: Sequence[float],
    projections: Collection[Projection] = PROJECTIONS,
) -> Iterator[list[Shares]]:
    """Yields the shares of one layer after another, at each of the targets: see `greedy_split`.

    histograms: of the scores, by site; window: what the layers' outputs are compared on;
    projections: those that are masked.
    """
    saved = weight_shares(windowed.config, projections)
    windowed.start([window])
    x = windowed.embed()
    for index in range(windowed.config.num_layers):
        layer = _LayerErrors(windowed, index, x, scoring, histograms)
        yield greedy_split(layer, saved, targets)
        x = layer.dense


def greedy_split(
    errors: Callable[[Sequence[Shares]], Sequence[float]],
    saved: Mapping[Projection, float],
    targets: Sequence[float],
) -> list[Shares]:
    """The shares with which a layer reaches each target: a share of its weights that is not read.

    errors: what each of some shares does to the layer's output; saved: each masked product's part
    of all their weights; targets: in rising order, up to 0.65. Each step but the last before a
    target is STEP.
    """
    shares: Shares = dict.fromkeys(PROJECTIONS, 0.0)
    total = 0.0
    found: list[Shares] = []
    for target in targets:
        while target - total > _ROUNDING:
            step = min(STEP, target - total)
            sparser = [(name, shares[name] + step / part) for name, part in saved.items()]
            trials = [{**shares, name: share} for name, share in sparser if share <= _MOST]
            shares = min(zip(errors(trials), trials, strict=True), key=itemgetter(0))[1]
            total += step
        found.append(shares)
    return found


class _LayerErrors:
    """The squared distance of a layer's output from its dense one, for each of some shares.

    Most of them differ in the layer's second half alone, and share the first.
    """

    def __init__(
        self,
        windowed: WindowedModel,
        index: int,
        x: Tensor,
        scoring: Scoring,
        histograms: Mapping[Site, Histogram],
    ) -> None:
        def rule(shares: Shares) -> Thresholds:
            return Thresholds(scoring, thresholds(histograms, {index: shares}))

        @lru_cache(_HALVES)
        def attended(qkv: float, o: float) -> tuple[Tensor, Tensor]:
            return windowed.attended(index, x, Masked(rule({"qkv": qkv, "o": o})))

        self._windowed, self._index = windowed, index
        # No methods: a cache of one would hold its owner, and a layer's tensors would stay until
        # some garbage collection
        self._rule, self._attended = rule, attended
        self.dense = windowed.fed_forward(index, *windowed.attended(index, x))

    def __call__(self, trials: Sequence[Shares]) -> list[float]:
        halves = [self._attended(shares["qkv"], shares["o"]) for shares in trials]
        normed, residual = (torch.cat(parts) for parts in zip(*halves, strict=True))
        masked = Masked(Several([self._rule(shares) for shares in trials]))
        found = self._windowed.fed_forward(self._index, normed, residual, masked)
        apart = found.view(len(trials), -1) - self.dense.flatten()
        return apart.float().square_().sum(1).tolist()


def thresholds(
    histograms: Mapping[Site, Histogram], shares: Mapping[int, Shares]
) -> dict[Site, float]:
    """By site, of scores; shares: by layer."""
    return {
        Site(layer, name): histograms[Site(layer, name)].threshold(share)
        for layer, by_projection in shares.items()
        for name, share in by_projection.items()
    }
