"""Forward passes whose products leave out what a rule masks: the oracle of the sparse path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

import torch
from inferx_kernels import ops
from torch import Tensor

from inferx.model.activations import PROJECTIONS, Projection, Site
from inferx.model.config import ModelConfig
from inferx.model.llama import LlamaForCausalLM
from inferx.sparse.definitions import masked_energy, masked_share, threshold_mask, topk_mask
from inferx.sparse.products import weight_shares
from inferx.sparse.statistics import Moments, Summary

Scores = Literal["magnitude", "weight-aware"]


def sites(config: ModelConfig) -> list[Site]:
    """In the order in which a forward pass computes them."""
    return [Site(layer, name) for layer in range(config.num_layers) for name in PROJECTIONS]


class Scoring:
    """What channels are ranked by: |x|, or |x| times the norm of the weights that it meets.

    The second is WINA's (arXiv 2505.19427): what leaving a channel out does to the product's
    output depends on both.
    """

    def __init__(self, model: LlamaForCausalLM, scores: Scores) -> None:
        self.scores = scores
        self._norms: dict[Site, Tensor] = {}
        if scores == "weight-aware":
            self._norms = {
                Site(index, projection): ops.column_norms(product.packed)
                for index, layer in enumerate(model.layers)
                for projection, product in layer.products().items()
            }

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        """[num_tokens, in_features] -> the same, at least 0, fp32."""
        magnitudes = x.float().abs()
        return magnitudes * self._norms[site] if self._norms else magnitudes


class Rule(Protocol):
    """Which channels are kept: [num_tokens, in_features] -> the same, bool."""

    def __call__(self, site: Site, x: Tensor) -> Tensor: ...


class TopK:
    """Masks the same share of every token's input of every product."""

    def __init__(self, share: float) -> None:
        self._k_ratio = 1 - share

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        return topk_mask(x, self._k_ratio)


class Thresholds:
    """Masks scores up to a threshold of each product's own."""

    def __init__(self, scoring: Scoring, values: Mapping[Site, float]) -> None:
        self._scoring, self._values = scoring, values

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        return threshold_mask(self._scoring(site, x), self._values[site])


class Several:
    """Rules of a batch's equal parts, one after another."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        parts = x.chunk(len(self._rules))
        return torch.cat([rule(site, part) for rule, part in zip(self._rules, parts, strict=True)])


class Counted:
    """A rule, and account of how many channels it masks.

    The masked share of a token's channels is S of the threshold where scores are magnitudes.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._shares: dict[Site, Moments] = defaultdict(Moments)

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        kept = self._rule(site, x)
        self._shares[site].add(masked_share(kept))
        return kept

    def share(self, site: Site) -> Summary:
        """Over tokens."""
        return self._shares[site].summary()

    def model_share(
        self, config: ModelConfig, projections: Collection[Projection] = PROJECTIONS
    ) -> float:
        """The share of these products' weights that a token did not read, a mean over tokens."""
        by_projection = weight_shares(config, projections)
        found = [
            by_projection[site.projection] * self.share(site).mean
            for site in sites(config)
            if site.projection in by_projection
        ]
        return sum(found) / config.num_layers


class Recorded(Counted):
    """Of what the rule masks the energy too, which takes as long as all else that masks do."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self._energies: dict[Site, Moments] = defaultdict(Moments)

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        kept = super().__call__(site, x)
        self._energies[site].add(masked_energy(x, kept))
        return kept

    def energy(self, site: Site) -> Summary:
        """rho, over tokens."""
        return self._energies[site].summary()


class Masked:
    """Activations without what a rule does not keep."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        return x * self._rule(site, x)
