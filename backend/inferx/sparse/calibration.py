"""The calibration file: a model's thresholds at one sparsity, and what they do on text.

It is JSON, written once and read where a model is served sparsely. It names the model that it was
made of, and carries a checksum: thresholds of another model, or changed by hand, would not fail
but write worse text.
"""

from __future__ import annotations

import glob
import hashlib
import stat
from pathlib import Path

import msgspec

from inferx.errors import SparsityError
from inferx.model.activations import PROJECTIONS, Projection, Site
from inferx.model.config import ModelConfig
from inferx.outputs import check_writable, write
from inferx.source import ModelSource
from inferx.sparse.fingerprint import model_fingerprint
from inferx.sparse.masking import Scores, sites
from inferx.sparse.statistics import Summary

FORMAT = 1
_AGAIN = "make it again with 'inferx sparsity calibrate'"
_MAX_BYTES = 16 << 20  # a site takes about 400, and the largest models have hundreds of them


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: ModelConfig) -> Shape:
        return cls(*(getattr(config, name) for name in cls.__struct_fields__))


class CalibratedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # what the user called it: two names may be one model
    fingerprint: str
    shape: Shape


class CalibrationText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str  # of the token ids, each 8 bytes
    num_tokens: int  # counted ones


class Quality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On held-out text, with these thresholds and without."""

    sha256: str
    num_tokens: int
    perplexity_dense: float
    perplexity_sparse: float
    growth: float  # relative
    standard_error: float  # of the windows' paired differences of -log p


class CalibratedSite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    layer: int
    projection: Projection
    threshold: float  # a channel is masked where its score is up to it; -1: none
    target: float  # the share of channels that the search gave it
    masked_share: Summary  # over held-out tokens; S where scores are magnitudes
    masked_energy: Summary  # rho, over held-out tokens


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    model: CalibratedModel
    dtype: str  # of the activations
    target: float  # the share of the masked products' weights that a token does not read
    reached: float  # on held-out text
    scores: Scores
    text: CalibrationText
    quality: Quality
    sites: list[CalibratedSite]
    checksum: str = ""

    @property
    def thresholds(self) -> dict[Site, float]:
        return {Site(site.layer, site.projection): site.threshold for site in self.sites}

    @property
    def projections(self) -> list[Projection]:
        """Those that it masks anything of."""
        masked = {site.projection for site in self.sites if site.threshold >= 0}
        return [name for name in PROJECTIONS if name in masked]


def default_path(source: ModelSource, target: float, scores: Scores) -> Path:
    """Beside the model: in its folder, or next to its GGUF file."""
    folder, prefix = _place(source)
    return folder / f"{prefix}sparsity-{round(100 * target)}-{scores}.json"


def beside(source: ModelSource) -> list[Path]:
    """The calibration files where `default_path` puts them, by name."""
    folder, prefix = _place(source)
    return sorted(folder.glob(f"{glob.escape(prefix)}sparsity-*.json"))


def _place(source: ModelSource) -> tuple[Path, str]:
    """Folder, and what a file's name begins with."""
    if source.format == "gguf":
        return source.path.parent, f"{source.path.stem}."
    return source.path, ""


def check_output(path: Path) -> None:
    """Whether `save_calibration` may write there. Calibrations alone are written over: a model's
    own files have names much like theirs.

    Raises OutputError, SparsityError.
    """
    check_writable("--output", path)
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        msgspec.json.decode(path.read_bytes(), type=_Version)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise SparsityError(
            f"the file {str(path)!r} is there and is no calibration: remove it, or name another "
            "with --output"
        ) from None


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Raises OutputError where it cannot be written."""
    sealed = msgspec.structs.replace(calibration, checksum=_checksum(calibration))
    content = msgspec.json.format(msgspec.json.encode(sealed), indent=1)
    write("--output", path, content + b"\n")


def load_calibration(path: Path, source: ModelSource, config: ModelConfig) -> Calibration:
    """The calibration of this very model.

    Raises SparsityError where the file cannot be read, is of another format, was changed since it
    was written, or belongs to another model.
    """
    found = _read(path)
    where = f"calibration file {path.name!r}"
    if found.checksum != _checksum(found):
        raise SparsityError(f"{where} was changed after it was written: {_AGAIN}")
    shape = Shape.of(config)
    if found.model.shape != shape:
        differing = next(
            name
            for name in Shape.__struct_fields__
            if getattr(found.model.shape, name) != getattr(shape, name)
        )
        raise SparsityError(
            f"{where} is of model {found.model.name!r}, whose {differing} is "
            f"{getattr(found.model.shape, differing)}, and that of model {source.label!r} is "
            f"{getattr(shape, differing)}: calibrate this model"
        )
    if found.model.fingerprint != model_fingerprint(source):
        raise SparsityError(
            f"{where} is of model {found.model.name!r}, and model {source.label!r} has the same "
            "shape with other weights: calibrate this model"
        )
    if [(site.layer, site.projection) for site in found.sites] != sites(config):
        raise SparsityError(f"{where} has not the sites of its model, each once: {_AGAIN}")
    return found


def _read(path: Path) -> Calibration:
    where = f"calibration file {path.name!r}"
    try:
        content = _content(path, where)
    except OSError as error:
        raise SparsityError(f"{where} cannot be read: {error.strerror}") from None
    try:
        version = msgspec.json.decode(content, type=_Version).format
        if version != FORMAT:
            raise SparsityError(
                f"{where} has format {version}, and this InferX reads {FORMAT}: {_AGAIN}"
            )
        return msgspec.json.decode(content, type=Calibration)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SparsityError(f"{where} is not one ({error}): {_AGAIN}") from None
    except RecursionError:
        raise SparsityError(f"{where} is not one (it is nested too deeply): {_AGAIN}") from None


def _content(path: Path, where: str) -> bytes:
    """A pipe or a device could be read for ever."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise SparsityError(f"{where} is no regular file: {_AGAIN}")
    if status.st_size > _MAX_BYTES:
        raise SparsityError(
            f"{where} has {status.st_size} bytes, and none has more than {_MAX_BYTES}: {_AGAIN}"
        )
    return path.read_bytes()


class _Version(msgspec.Struct):
    format: int


def _checksum(calibration: Calibration) -> str:
    unsealed = msgspec.structs.replace(calibration, checksum="")
    return hashlib.sha256(msgspec.json.encode(unsealed)).hexdigest()
