"""What each token of a text shows under a row's masks, and how well it is predicted."""

from __future__ import annotations

import argparse
import inspect
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from _chinese import TEXT as CHINESE
from inferx.model.activations import Site
from inferx.paths.info import SparseRow
from inferx.paths.probe import StepProbe
from inferx.perplexity import python_documentation, windows
from inferx.sparse.definitions import masked_energy, masked_share
from inferx.sparse.masking import Masked, Recorded, Scoring, Thresholds, sites
from inferx.sparse.measuring import ScoreHistograms
from inferx.sparse.search import thresholds
from inferx.sparse.statistics import Histogram
from inferx.sparse.windows import WINDOW, Window, WindowedModel
from inferx.text.tokenizer import Tokenizer
from torch import Tensor

Array = np.ndarray
CODE = (argparse, inspect, shutil, subprocess)


def texts(tokenizer: Tokenizer) -> dict[str, list[Window]]:
    """Windows of the prose that rows are calibrated on, of Python code, and of Chinese."""
    code = "\n".join(inspect.getsource(module) for module in CODE)
    found = {"prose": python_documentation(), "code": code, "Chinese": CHINESE}
    return {
        name: windows(tokenizer.encode(text, add_special_tokens=False), WINDOW)
        for name, text in found.items()
    }


class Trace(NamedTuple):
    """Of one window under one row, a step a token."""

    shares: Array  # [num_steps, num_sites]
    energies: Array
    surprises: Array  # [num_steps] -log p of the token that follows; the last one's is unknown: 0

    def probe(self, at: int, step: int, target: float) -> StepProbe:
        shares = self.shares[at]
        return StepProbe(step, target, 1, shares, 1 - shares, self.energies[at], 0)


class _Seen:
    """Masks, and keeps what every token showed."""

    def __init__(self, rule: Thresholds) -> None:
        self._rule = rule
        self.shares: list[Tensor] = []
        self.energies: list[Tensor] = []

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        kept = self._rule(site, x)
        self.shares.append(masked_share(kept))
        self.energies.append(masked_energy(x, kept))
        return x * kept


class Rows:
    """Rows of uniform thresholds for some targets, found and judged on two sets of windows."""

    def __init__(
        self,
        windowed: WindowedModel,
        targets: Sequence[float],
        found_on: list[Window],
        judged_on: list[Window],
    ) -> None:
        self._windowed = windowed
        self._scoring = Scoring(windowed.model, "magnitude")
        counting = ScoreHistograms([self._scoring])
        for window in found_on:
            windowed.start([window])
            windowed.hidden(counting)
        [histograms] = counting.found
        self._rules = {target: self._rule(histograms, target) for target in targets}
        self.rows = [self._row(target, judged_on) for target in targets]

    def _rule(self, histograms: dict[Site, Histogram], target: float) -> Thresholds:
        config = self._windowed.config
        same = dict.fromkeys(("qkv", "o", "gate_up", "down"), target)
        shares = dict.fromkeys(range(config.num_layers), same)
        return Thresholds(self._scoring, thresholds(histograms, shares))

    def _row(self, target: float, judged_on: list[Window]) -> SparseRow:
        seen = Recorded(self._rules[target])
        for window in judged_on:
            self._windowed.start([window])
            self._windowed.hidden(Masked(seen))
        places = sites(self._windowed.config)
        shares, energies = [seen.share(s) for s in places], [seen.energy(s) for s in places]
        return SparseRow(
            target, 0.0, [s.mean for s in shares], [s.deviation for s in shares],
            [e.mean for e in energies], [e.deviation for e in energies],
        )  # fmt: skip

    @torch.inference_mode()
    def trace(self, window: Window, target: float) -> Trace:
        seen = _Seen(self._rules[target])
        self._windowed.start([window])
        hidden = self._windowed.hidden(seen)
        stacked = [torch.stack(kept, 1).numpy() for kept in (seen.shares, seen.energies)]
        return Trace(*stacked, self._surprises(hidden, window))

    @torch.inference_mode()
    def dense(self, window: Window) -> Array:
        self._windowed.start([window])
        return self._surprises(self._windowed.hidden(), window)

    def _surprises(self, hidden: Tensor, window: Window) -> Array:
        targets = torch.tensor(window[-len(hidden) + 1 :])
        logits = self._windowed.model.logits(hidden[:-1]).float()
        found = torch.nn.functional.cross_entropy(logits, targets, reduction="none").numpy()
        return np.append(found, 0.0)
