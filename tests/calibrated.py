"""A tiny model with calibrations beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from inferx.config import EngineConfig
from inferx.model.activations import PROJECTIONS
from inferx.model.loading import LoadedModel
from inferx.observe.stages import Stages
from inferx.source import ModelSource
from inferx.sparse.calibrating import calibrate
from inferx.sparse.calibration import Calibration, default_path, save_calibration
from inferx.sparse.windows import COUNTED, WINDOW, Text, WindowedModel
from inferx.text.tokenizer import Tokenizer
from tiny_models import make_tiny_model

TEXT = "".join(random.Random(0).choices("abcdefgh", k=2 * 3 * WINDOW))
ENOUGH = 2 * COUNTED  # tokens: two windows


def silent(what: str, done: int, total: int) -> None: ...


def open_model(folder: Path, family: str = "llama", **options) -> tuple[ModelSource, WindowedModel]:
    make_tiny_model(folder, family, **options)
    source = ModelSource(folder, "huggingface", "tiny")
    config = EngineConfig(model=str(folder), device="cpu", dtype="float32")
    return source, WindowedModel(LoadedModel.load(config, source, Stages()))


def calibrated(
    source: ModelSource,
    windowed: WindowedModel,
    target: float,
    scores="magnitude",
    projections=PROJECTIONS,
) -> Calibration:
    text = Text(TEXT, Tokenizer.from_source(source), "the text 'bytes'")
    return calibrate(
        windowed, source, target=target, scores=scores, projections=projections,
        texts=text.calibration(ENOUGH), held_out=text.held_out(ENOUGH), progress=silent,
    )  # fmt: skip


def make_calibrated_model(folder: Path, targets: Sequence[float] = (0.25, 0.5)) -> ModelSource:
    source, windowed = open_model(folder)
    for target in targets:
        found = calibrated(source, windowed, target)
        save_calibration(found, default_path(source, target, "magnitude"))
    return source
