"""EngineConfig: every setting once, validated, from model.json or from command-line flags.

Names follow vLLM's engine arguments where it has the setting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from inferx.errors import ConfigError, unknown_name

_INT64 = 2**63 - 1  # the largest number that the wire to the engine carries
Positive = Annotated[int, msgspec.Meta(ge=1, le=_INT64)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_INT64)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
Ratio = Annotated[float, msgspec.Meta(ge=0, lt=1)]

PAGE_GRANULE = 16  # tokens; prefix pages are hashed at this granule, a page is a multiple of it


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model's settings."""

    model: str = ""  # a path, a hub id, or package:NAME for a model that a Python package carries
    tokenizer: str | None = None  # the same; None: the model's own
    engine: Literal["inferx", "synthetic"] = "inferx"
    load_format: Literal["auto", "dummy"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8"] = "auto"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    max_model_len: Positive | None = None  # tokens, prompt and output; None: the model's own

    # One step
    max_num_seqs: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 128
    max_num_batched_tokens: Positive | None = None  # None: 512 on a CPU, 8192 on a GPU
    enable_async_batch: bool = True  # plan step n+1 while step n runs
    batch_invariant: bool = False  # the same tokens whoever shares the batch; slower
    seed: Annotated[int, msgspec.Meta(ge=-_INT64, le=_INT64)] = 0

    # KV pages
    block_size: Positive | None = None  # tokens a page, a multiple of 16; None: 16, or 64 on a GPU
    num_gpu_blocks_override: Positive | None = None  # pages; None: from the memory there is
    kv_cache_memory_bytes: Positive | None = None  # None: from gpu_memory_utilization
    gpu_memory_utilization: Fraction = 0.92
    enable_prefix_caching: bool = True

    # The channel
    max_queue_size: Count = 1024  # waiting beyond max_num_seqs
    response_shards: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8  # threads that send responses
    stream_interval: Positive = 1  # tokens of a stream that go out together, after the first
    request_timeout: Seconds = 3600.0  # a request's longest life, queue included
    drain_timeout: Seconds = 20.0  # unload and shutdown wait this long, then cancel
    heartbeat_timeout: Seconds = 30.0  # without an answer for this long the engine counts as dead
    start_timeout: Seconds = 600.0
    max_engine_restarts: Count = 3  # within ten minutes

    # The sparse path
    sparsity: str | Ratio = "off"  # of requests that say nothing: off | auto | a calibrated ratio
    sparsity_max_growth: Fraction = 0.03  # of perplexity, by the calibration, that auto accepts
    sparsity_drift_rule: Literal["page-hinkley", "ewma", "variance"] = "page-hinkley"

    # Traces
    otlp_traces_endpoint: str | None = None  # of a collector, OTLP over HTTP; None: no traces
    trace_sample_ratio: Fraction = 1.0  # of requests whose caller brings no trace
    trace_content: bool = False

    # engine: synthetic
    synthetic_step_time: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.005  # seconds a step

    @property
    def needs_weights(self) -> bool:
        """Whether the model's weights are read, so that they have to be there."""
        return self.load_format != "dummy"

    @property
    def max_in_flight(self) -> int:
        """Sequences that run or wait; one more is refused."""
        return self.max_num_seqs + self.max_queue_size

    def step_budget(self, device: str) -> int:
        """`max_num_batched_tokens`, with its default for the device that the model runs on."""
        return self.max_num_batched_tokens or (512 if device == "cpu" else 8192)

    def page_size(self, device: str) -> int:
        """`block_size`, likewise: larger pages are faster on a GPU, smaller ones shared better."""
        return self.block_size or (16 if device == "cpu" else 64)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], source: str = "model.json") -> EngineConfig:
        """Raises ConfigError, naming the setting and, where one is near, the known name."""
        for name in given:
            if name not in cls.__struct_fields__:
                raise ConfigError(
                    f"{source}: {unknown_name('setting', name, cls.__struct_fields__)}"
                )
        for name, value in given.items():
            if isinstance(value, str) and not _is_unicode(value):
                raise ConfigError(
                    f"{source}: setting {name!r} is {value!r}: expected valid Unicode"
                )
        if "model" not in given and given.get("engine") != "synthetic":
            raise ConfigError(f"{source}: the setting 'model' is missing")
        try:
            config = msgspec.convert(_with_numbers(given), cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{source}: {_readable(error)}") from None
        if (problem := config._sparsity_problem()) is not None:
            raise ConfigError(f"{source}: {problem}")
        if config.block_size is not None and config.block_size % PAGE_GRANULE:
            raise ConfigError(
                f"{source}: block_size is {config.block_size}: "
                f"expected a multiple of {PAGE_GRANULE}"
            )
        return config

    def _sparsity_problem(self) -> str | None:
        match self.sparsity:
            case "off":
                return None
            case "auto" if self.batch_invariant:
                return (
                    "sparsity is 'auto' with batch_invariant, and auto chooses a path by who "
                    "shares the batch: set sparsity to 0, then requests may still name a ratio"
                )
            case float() | int() as ratio if ratio > 0 and self.batch_invariant:
                return (
                    f"sparsity is {ratio:g} with batch_invariant, and a step is only as sparse as "
                    "all that share it: set sparsity to 0, then requests may still name a ratio"
                )
            case str() as word if word != "auto":
                return f"sparsity is {word!r}: expected 'off', 'auto' or a ratio in [0, 1)"
        if self.engine == "synthetic":
            return "sparsity is set, and the synthetic engine has no activations: leave it out"
        return None

    @classmethod
    def from_file(cls, path: Path) -> EngineConfig:
        """Reads model.json. Raises ConfigError."""
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path.name} is missing: it names the model to serve") from None
        except OSError as error:
            raise ConfigError(f"{path.name} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path.name} is not readable JSON: {error}") from None
        if not isinstance(given, dict):
            raise ConfigError(f"{path.name} holds no JSON object of settings")
        return cls.from_mapping(given, path.name)


def _is_unicode(text: str) -> bool:
    """JSON can spell half a character, and a command line's bytes may be no UTF-8; the wire to the
    engine carries neither."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _with_numbers(given: Mapping[str, Any]) -> dict[str, Any]:
    """With a ratio as a number that came as text, as it does from a command line."""
    found = dict(given)
    if isinstance(text := found.get("sparsity"), str):
        with suppress(ValueError):
            found["sparsity"] = float(text)
    return found


def _readable(error: msgspec.ValidationError) -> str:
    """msgspec says "Expected `int`, got `str` - at `$.seed`"; settings come first here."""
    text, _, where = str(error).partition(" - at `$.")
    return f"setting {where.rstrip('`')!r}: {text}" if where else text
