"""How sparse a model's activations are: statistics of |x| for each product, and S at thresholds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec
from torch import Tensor

from inferx.errors import SparsityError
from inferx.model.activations import Projection, Site
from inferx.sparse.definitions import sparsity
from inferx.sparse.masking import Scoring, sites
from inferx.sparse.statistics import Histogram, Moments, Summary
from inferx.sparse.windows import COUNTED, Window, WindowedModel, batches

Progress = Callable[[str, int, int], None]  # what is being done, steps done, of how many
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


class SiteMeasure(msgspec.Struct, frozen=True):
    """Of all tokens and channels, but for the deviation of S, which is one over tokens."""

    layer: int
    projection: Projection
    magnitude: Summary
    quantiles: dict[str, float]  # of |x|, by their share
    sparsity: dict[str, Summary]  # S, by its threshold


class Measurement(msgspec.Struct, frozen=True):
    model: str
    dtype: str
    num_tokens: int
    sites: list[SiteMeasure]


class ScoreHistograms:
    """Activations that stay as they are; their scores are counted."""

    def __init__(self, scorings: Sequence[Scoring]) -> None:
        self._scorings = scorings
        self.found: list[dict[Site, Histogram]] = [defaultdict(Histogram) for _ in scorings]

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        for scoring, histograms in zip(self._scorings, self.found, strict=True):
            histograms[site].add(scoring(site, x))
            _check_finite(histograms[site], site, x)
        return x


class Magnitudes:
    """Activations that stay as they are; their magnitudes are measured."""

    def __init__(self, thresholds: Sequence[float]) -> None:
        self._thresholds = thresholds
        self._histograms: dict[Site, Histogram] = defaultdict(Histogram)
        self._moments: dict[Site, Moments] = defaultdict(Moments)
        self._sparsities: dict[tuple[Site, float], Moments] = defaultdict(Moments)

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        magnitudes = x.float().abs()
        self._histograms[site].add(magnitudes)
        _check_finite(self._histograms[site], site, x)
        self._moments[site].add(magnitudes)
        for threshold in self._thresholds:
            self._sparsities[site, threshold].add(sparsity(magnitudes, threshold))
        return x

    def of(self, site: Site) -> SiteMeasure:
        return SiteMeasure(
            *site,
            magnitude=self._moments[site].summary(),
            quantiles={str(q): self._histograms[site].quantile(q) for q in QUANTILES},
            sparsity={str(t): self._sparsities[site, t].summary() for t in self._thresholds},
        )


def measure(
    windowed: WindowedModel,
    name: str,
    texts: Sequence[Window],
    thresholds: Sequence[float],
    progress: Progress,
) -> Measurement:
    """Raises SparsityError where an activation is not finite."""
    magnitudes = Magnitudes(thresholds)
    done = 0
    for batch in batches(texts):
        windowed.start(batch)
        windowed.hidden(magnitudes)
        done += len(batch)
        progress("measuring activations", done, len(texts))
    found = [magnitudes.of(site) for site in sites(windowed.config)]
    return Measurement(name, windowed.dtype, COUNTED * len(texts), found)


def _check_finite(histogram: Histogram, site: Site, x: Tensor) -> None:
    if not histogram.is_finite:
        kind = str(x.dtype).removeprefix("torch.")
        raise SparsityError(
            f"the input of {site} has numbers that are not finite in {kind}: take another --dtype, "
            "or check the model's weights"
        )
