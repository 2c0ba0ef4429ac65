"""The curve of perplexity against sparsity, for each way to choose what is masked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

import msgspec

from inferx.model.activations import PROJECTIONS
from inferx.perplexity import Growth
from inferx.sparse.calibrating import count_scores, find_splits, surprises
from inferx.sparse.calibration import Calibration
from inferx.sparse.masking import Counted, Rule, Scoring, Thresholds, TopK
from inferx.sparse.measuring import Progress
from inferx.sparse.search import thresholds
from inferx.sparse.windows import COUNTED, Window, WindowedModel, data_hash

Way = Literal["top-k", "uniform", "calibrated", "weight-aware", "file"]  # file: a calibration file
TARGETS = (0.25, 0.4, 0.5, 0.65)
MAX_TARGET = 0.65


class Change(msgspec.Struct, frozen=True):
    """A relative change of perplexity, with its 95% confidence interval of paired windows."""

    mean: float
    low: float
    high: float

    @classmethod
    def between(cls, found: Sequence[float], base: Sequence[float]) -> Change:
        growth = Growth.between(found, base)
        return cls(growth.mean, *growth.interval)


class Point(msgspec.Struct, frozen=True):
    way: Way
    target: float  # the share of the layers' weights that a token should not read
    reached: float  # and the share that it did not
    perplexity: float
    change: Change  # from dense
    from_uniform: Change | None  # from uniform thresholds of the same target
    from_topk: Change | None
    surprises: list[float]  # by window: a token's mean -log p


class Evaluation(msgspec.Struct, frozen=True):
    model: str
    dtype: str
    num_tokens: int  # scored
    text_sha256: str
    perplexity: float  # dense
    surprises: list[float]
    points: list[Point]


class _Planned(NamedTuple):
    way: Way
    target: float
    rule: Counted


class Evaluator:
    """texts: what thresholds are found on; held_out: what is scored."""

    def __init__(
        self,
        windowed: WindowedModel,
        texts: Sequence[Window],
        held_out: Sequence[Window],
        progress: Progress,
    ) -> None:
        self._windowed, self._progress = windowed, progress
        self._texts, self._held_out = texts, held_out

    def curve(
        self, name: str, targets: Sequence[float], calibration: Calibration | None = None
    ) -> Evaluation:
        """targets: in rising order. Raises SparsityError where an activation is not finite, and as
        `surprises` does."""
        planned = [
            _Planned(way, target, Counted(rule))
            for way, target, rule in self._rules(targets, calibration)
        ]
        rules = [one.rule for one in planned]
        dense, masked = surprises(self._windowed, self._held_out, rules, self._progress)
        by_plan = {(p.way, p.target): found for p, found in zip(planned, masked, strict=True)}
        points = [
            Point(
                way=one.way,
                target=one.target,
                reached=one.rule.model_share(self._windowed.config),
                perplexity=math.exp(fmean(found)),
                change=Change.between(found, dense),
                from_uniform=_from(by_plan.get(("uniform", one.target)), found),
                from_topk=_from(by_plan.get(("top-k", one.target)), found),
                surprises=found,
            )
            for one, found in zip(planned, masked, strict=True)
        ]
        return Evaluation(
            model=name,
            dtype=self._windowed.dtype,
            num_tokens=(COUNTED - 1) * len(self._held_out),
            text_sha256=data_hash(self._held_out),
            perplexity=math.exp(fmean(dense)),
            surprises=dense,
            points=points,
        )

    def _rules(
        self, targets: Sequence[float], calibration: Calibration | None
    ) -> Iterator[tuple[Way, float, Rule]]:
        model, config = self._windowed.model, self._windowed.config
        plain, aware = Scoring(model, "magnitude"), Scoring(model, "weight-aware")
        histograms = count_scores(self._windowed, [plain, aware], self._texts, self._progress)
        for target in targets:
            same = dict.fromkeys(PROJECTIONS, target)
            values = thresholds(histograms[0], dict.fromkeys(range(config.num_layers), same))
            yield "uniform", target, Thresholds(plain, values)
        for target in targets:
            yield "top-k", target, TopK(target)
        ways: list[tuple[Way, Scoring]] = [("calibrated", plain), ("weight-aware", aware)]
        for (way, scoring), counted in zip(ways, histograms, strict=True):
            splits = find_splits(
                self._windowed, scoring, counted, self._texts[0], targets, self._progress
            )
            for target, split in zip(targets, splits, strict=True):
                yield way, target, Thresholds(scoring, thresholds(counted, split))
        if calibration is not None:
            scoring = plain if calibration.scores == "magnitude" else aware
            yield "file", calibration.target, Thresholds(scoring, calibration.thresholds)


def _from(base: list[float] | None, found: list[float]) -> Change | None:
    return None if base is None or base is found else Change.between(found, base)
