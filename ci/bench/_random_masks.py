"""A shape with random weights and a sparse path: masks at a ratio that is asked for.

Random weights have no honest calibration: each product's threshold is found by bisection, so that
a step of one token masks the ratio.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from _shapes import LIMITS, PRECISIONS, write_shape
from inferx.config import EngineConfig
from inferx.model.gpu.masked import GpuRows
from inferx.model.gpu.runner import GpuRunner
from inferx.model.llama import LlamaForCausalLM
from inferx.model.loading import LoadedModel
from inferx.observe.stages import Stages
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
from inferx.sparse.masking import sites
from inferx.sparse.products import itemsize, worthwhile
from inferx.sparse.statistics import Summary
from inferx.sparse.timing import TimeStep

TARGET = 0.5  # of the made up calibration
BISECTIONS = 30
LARGEST = 64.0  # of thresholds: above all scores


class Masked(NamedTuple):
    config: EngineConfig
    runner: GpuRunner
    rows: GpuRows
    step: TimeStep


def open_masked(shape: str, precision: str) -> Masked:
    """Close the runner at the end; call the step within its `computing`."""
    with tempfile.TemporaryDirectory() as name:
        folder = write_shape(Path(name, shape), shape)
        settings = LIMITS | PRECISIONS[precision] | {"model": str(folder)}
        config = EngineConfig.from_mapping(settings, "command line")
        source = ModelSource(folder, "huggingface", shape)
        loaded = LoadedModel.load(config, source, Stages())
        loaded = loaded._replace(calibrations=[_made_up(loaded)])
        runner = GpuRunner(config, loaded, Stages())
    rows = runner.sparse_rows
    assert rows is not None
    step = runner.timing(runner.info.num_blocks, loaded.config.vocab_size)
    return Masked(config, runner, rows, step)


def _made_up(loaded: LoadedModel) -> Calibration:
    """Its thresholds do not matter, but for products that are not worth masking."""
    assert isinstance(loaded.model, LlamaForCausalLM)
    masked = worthwhile(loaded.config, itemsize(loaded.model))
    nothing = Summary(0.0, 0.1)
    found = [
        CalibratedSite(*site, 1.0 if site.projection in masked else -1.0, 0.5, nothing, nothing)
        for site in sites(loaded.config)
    ]
    return Calibration(
        FORMAT, CalibratedModel("random", "", Shape.of(loaded.config)), str(loaded.dtype),
        TARGET, TARGET, "magnitude", CalibrationText("", 0), Quality("", 0, 1.0, 1.0, 0.0, 0.0),
        found,
    )  # fmt: skip


def find_thresholds(masked: Masked, ratio: float) -> None:
    """In one step of one token each product masks `ratio` of its channels. The thresholds stay in
    use as long as no other row is selected."""
    rows = masked.rows
    rows.select(TARGET)
    low = torch.full_like(rows.thresholds, -1.0)
    if ratio == 0:
        rows.thresholds.copy_(low)
        return
    high = torch.full_like(low, LARGEST)
    low.zero_()
    for _ in range(BISECTIONS):
        rows.thresholds.copy_((low + high) / 2)
        masked.step(1, True)
        too_many = rows.probe.current[:, 0] > ratio
        high = torch.where(too_many, rows.thresholds, high)
        low = torch.where(too_many, low, rows.thresholds)
