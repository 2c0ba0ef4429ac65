"""The calibrations that lie beside a model, as many of them as may be served."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from inferx.config import EngineConfig
from inferx.errors import SparsityError
from inferx.model.config import ModelConfig
from inferx.model.hf_config import FUSED_ARCHITECTURES
from inferx.source import ModelSource, load_error
from inferx.sparse.calibration import Calibration, beside, load_calibration

logger = logging.getLogger(__name__)


def find_calibrations(
    config: EngineConfig, source: ModelSource, model: ModelConfig
) -> list[Calibration]:
    """One for each target, by rising target; none where the setting is off.

    Raises ModelLoadError where a file is not of this model, or was changed, and where the setting
    `sparsity` cannot be honoured by those there are.
    """
    if config.sparsity == "off":
        return []
    if model.architecture not in FUSED_ARCHITECTURES:
        raise load_error(
            source,
            f"the setting sparsity is {config.sparsity!r}, and {model.architecture} has no sparse "
            f"path: set it to 'off'; it is for {', '.join(FUSED_ARCHITECTURES)}",
        )
    found: dict[float, Calibration] = {}
    for path in beside(source):
        calibration = _load(path, source, model)
        other = found.get(calibration.target)
        if other is None or calibration.quality.growth < other.quality.growth:
            found[calibration.target] = calibration
    calibrations = [found[target] for target in sorted(found)]
    problem = _problem(config, calibrations)
    if problem is not None:
        raise load_error(source, f"the setting sparsity is {config.sparsity!r}{problem}")
    for one in calibrations:
        logger.info(
            "sparsity %g: calibrated by %s, perplexity %+.1f%%",
            one.target, one.scores, 100 * one.quality.growth,
        )  # fmt: skip
    return calibrations


def _load(path: Path, source: ModelSource, model: ModelConfig) -> Calibration:
    try:
        return load_calibration(path, source, model)
    except SparsityError as error:
        raise load_error(source, str(error)) from None


def _problem(config: EngineConfig, calibrations: Sequence[Calibration]) -> str | None:
    """What is missing for the setting to be honoured."""
    if not calibrations:
        return (
            " and no calibration lies beside the model: make one with 'inferx sparsity calibrate', "
            "or set sparsity to 'off'"
        )
    targets = [calibration.target for calibration in calibrations]
    known = ", ".join(f"{target:g}" for target in targets)
    if config.sparsity == "auto":
        least = min(calibration.quality.growth for calibration in calibrations)
        if least <= config.sparsity_max_growth:
            return None
        return (
            f", which takes calibrations that cost at most {config.sparsity_max_growth:.1%} of "
            f"perplexity, and those beside the model ({known}) cost {least:.1%} and more: raise "
            "sparsity_max_growth, or name a ratio"
        )
    if config.sparsity in (0, *targets):
        return None
    return f", and the calibrations beside the model are for {known}: set it to one of them"
