"""A model's figures, out of Triton's metrics page."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field

from inferx.observe.families import HISTOGRAMS

_PREFIX = "inferx:"
_LINE = re.compile(rf"^({_PREFIX}\w+)\{{([^}}]*)\}} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass
class ModelMetrics:
    """By the families' names, without their prefix."""

    values: dict[str, float] = field(default_factory=dict)  # gauges and counters, labels summed
    # Cumulative counts of `_bucket` by `le`
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)

    def histogram(self, name: str) -> list[tuple[float | None, float]]:
        """Upper bounds, ascending, and the observations up to each; the last bound is None."""
        counts = sorted(self.buckets.get(name, {}).items())
        return [(None if math.isinf(bound) else bound, count) for bound, count in counts]

    @property
    def engine_is_down(self) -> bool:
        """Older Triton servers call a model ready whose engine process has ended."""
        return self.values.get("engine_up") == 0.0


def models_on(page: str) -> dict[str, ModelMetrics]:
    """By model, the versions of a model summed."""
    found: dict[str, ModelMetrics] = defaultdict(ModelMetrics)
    for family, text, value in _LINE.findall(page):
        labels = dict(_LABEL.findall(text))
        if "model" not in labels:
            continue
        model, name = found[labels["model"]], family.removeprefix(_PREFIX)
        histogram = name.removesuffix("_bucket")
        if "le" in labels:
            counts = model.buckets.setdefault(histogram, {})
            bound = float(labels["le"])
            counts[bound] = counts.get(bound, 0.0) + float(value)
        elif _part_of_histogram(family):
            continue
        else:
            model.values[name] = model.values.get(name, 0.0) + float(value)
    return dict(found)


def _part_of_histogram(family: str) -> bool:
    """Whether it is a `_sum` or a `_count`."""
    return family.rpartition("_")[0] in HISTOGRAMS
