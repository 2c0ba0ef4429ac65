"""Finds a model's thresholds: histograms of scores, the search for each layer's split, and what
they cost on text that they were not found on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from inferx.errors import SparsityError
from inferx.model.activations import PROJECTIONS, Projection, Site
from inferx.perplexity import Growth
from inferx.source import ModelSource
from inferx.sparse.calibration import (
    FORMAT,
    CalibratedModel,
    CalibratedSite,
    Calibration,
    CalibrationText,
    Quality,
    Shape,
)
from inferx.sparse.fingerprint import model_fingerprint
from inferx.sparse.masking import Masked, Recorded, Rule, Scores, Scoring, Thresholds, sites
from inferx.sparse.measuring import Progress, ScoreHistograms
from inferx.sparse.search import Shares, layer_splits, thresholds
from inferx.sparse.statistics import Histogram
from inferx.sparse.windows import COUNTED, Window, WindowedModel, batches, data_hash

TARGETS = (0.25, 0.4, 0.5)
# A token's mean -log p in a window. Guessing among 2^31 tokens takes 22; masks may do worse than
# that, as long as the perplexity is a number
_MOST_DENSE, _MOST_MASKED = 30.0, 300.0


def find_splits(
    windowed: WindowedModel,
    scoring: Scoring,
    histograms: Mapping[Site, Histogram],
    window: Window,
    targets: Sequence[float],
    progress: Progress,
    projections: Collection[Projection] = PROJECTIONS,
) -> list[dict[int, Shares]]:
    """By target, by layer; targets in rising order. One window decides: it says how sparsity is
    split within a layer, not how much there is."""
    found: list[dict[int, Shares]] = [{} for _ in targets]
    splits = layer_splits(windowed, scoring, histograms, window, targets, projections)
    num_layers = windowed.config.num_layers
    for layer, by_target in enumerate(splits):
        for shares, split in zip(found, by_target, strict=True):
            shares[layer] = split
        progress(f"splitting layers by {scoring.scores}", layer + 1, num_layers)
    return found


def count_scores(
    windowed: WindowedModel,
    scorings: Sequence[Scoring],
    texts: Sequence[Window],
    progress: Progress,
) -> list[dict[Site, Histogram]]:
    """A histogram for each site, by scoring. Raises SparsityError where one is not finite."""
    counting = ScoreHistograms(scorings)
    done = 0
    for batch in batches(texts):
        windowed.start(batch)
        windowed.hidden(counting)
        done += len(batch)
        progress("counting activations", done, len(texts))
    return counting.found


def surprises(
    windowed: WindowedModel,
    texts: Sequence[Window],
    rules: Sequence[Rule],
    progress: Progress,
) -> tuple[list[float], list[list[float]]]:
    """A token's mean -log p, by window: without masks, and by rule.

    Raises SparsityError where the model gives text no probability to speak of.
    """
    dense: list[float] = []
    masked: list[list[float]] = [[] for _ in rules]
    done, steps = 0, len(texts) * (1 + len(rules))
    for batch in batches(texts):
        windowed.start(batch)
        dense += _checked(windowed.surprises(), _MOST_DENSE)
        done += len(batch)
        progress("scoring text", done, steps)
        for rule, found in zip(rules, masked, strict=True):
            found += _checked(windowed.surprises(Masked(rule)), _MOST_MASKED)
            done += len(batch)
            progress("scoring text", done, steps)
    return dense, masked


def _checked(found: list[float], most: float) -> list[float]:
    """Activations are looked at where they are counted: this is for the final norm and the head."""
    for surprise in found:
        if not surprise <= most:  # nor is NaN
            raise SparsityError(
                f"the model finds its text next to impossible (a token's mean -log p is "
                f"{surprise:.3g}): take another --dtype, or check the model's weights"
            )
    return found


def calibrate(
    windowed: WindowedModel,
    source: ModelSource,
    *,
    target: float,
    scores: Scores,
    projections: Collection[Projection],
    texts: Sequence[Window],
    held_out: Sequence[Window],
    progress: Progress,
) -> Calibration:
    """projections: those that are masked, `target` of their weights; texts: what thresholds are
    found on; held_out: what they are judged on.

    Raises SparsityError where an activation is not finite, and as `surprises` does.
    """
    scoring = Scoring(windowed.model, scores)
    [histograms] = count_scores(windowed, [scoring], texts, progress)
    [splits] = find_splits(windowed, scoring, histograms, texts[0], [target], progress, projections)
    values = thresholds(histograms, splits)
    rule = Recorded(Thresholds(scoring, values))
    dense, [sparse] = surprises(windowed, held_out, [rule], progress)
    growth = Growth.between(sparse, dense)
    return Calibration(
        format=FORMAT,
        model=CalibratedModel(source.label, model_fingerprint(source), Shape.of(windowed.config)),
        dtype=windowed.dtype,
        target=target,
        reached=rule.model_share(windowed.config, projections),
        scores=scores,
        text=CalibrationText(data_hash(texts), COUNTED * len(texts)),
        quality=Quality(
            sha256=data_hash(held_out),
            num_tokens=(COUNTED - 1) * len(held_out),
            perplexity_dense=math.exp(fmean(dense)),
            perplexity_sparse=math.exp(fmean(sparse)),
            growth=growth.mean,
            standard_error=growth.standard_error,
        ),
        sites=[
            CalibratedSite(
                *site,
                threshold=values[site],
                target=splits[site.layer][site.projection],
                masked_share=rule.share(site),
                masked_energy=rule.energy(site),
            )
            for site in sites(windowed.config)
        ],
    )
