"""EngineConfig's settings as command-line options: --max-num-seqs is max_num_seqs, and so on.

They are made from the struct itself, so that none can be missing; only the help texts are here.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from inferx.config import EngineConfig
from inferx.entrypoints.added_options import with_options

HELP = {
    "model": "a folder, a .gguf file, a hub id, or package:NAME for one in a Python package",
    "tokenizer": (
        "a folder, a .gguf file, a hub id or package:NAME whose tokenizer is taken, not the model's"
    ),
    "engine": "synthetic emits tokens at a fixed pace without a model, for load tests",
    "load_format": "dummy makes random weights of the shape in config.json, for benchmarks",
    "device": "where the model runs; auto takes a GPU if there is one",
    "dtype": "of weights and activations; auto takes what is fast on the device, fp8 quantizes",
    "kv_cache_dtype": "of the KV cache; auto is what the model computes in",
    "max_model_len": (
        "tokens of prompt and output together; if not given the model's own limit, or what the KV "
        "pages hold"
    ),
    "max_num_seqs": "sequences that run at once",
    "max_num_batched_tokens": "token budget of one step; 512 on a CPU, 8192 on a GPU if not given",
    "enable_async_batch": "plan step n+1 while step n runs",
    "batch_invariant": "the same tokens whoever shares the batch; slower",
    "seed": "what the seeds of requests that bring none are drawn from",
    "block_size": (
        "tokens a KV page holds, a multiple of 16; 16 on a CPU, 64 on a GPU if not given"
    ),
    "num_gpu_blocks_override": "KV pages; from kv_cache_memory_bytes if not given",
    "kv_cache_memory_bytes": (
        "bytes for KV pages; if not given, on a GPU what gpu_memory_utilization leaves, on a CPU "
        "256 MiB or more, by the model"
    ),
    "gpu_memory_utilization": "share of the GPU's memory for weights, steps and KV pages together",
    "enable_prefix_caching": "keep the pages of finished prompts for requests that begin alike",
    "max_queue_size": "requests that may wait; one more is refused with UNAVAILABLE",
    "response_shards": "threads that send responses",
    "stream_interval": "tokens of a stream that go out together, after its first one",
    "request_timeout": "seconds a request may live, waiting included",
    "drain_timeout": "seconds that unload and shutdown wait for running requests",
    "heartbeat_timeout": (
        "seconds without an answer after which the engine counts as dead; longer than any step"
    ),
    "start_timeout": "seconds the engine may take to load",
    "max_engine_restarts": "restarts of a dead engine within ten minutes",
    "sparsity": (
        "of requests that say nothing: off, auto (where it is predicted to be faster) or a "
        "calibrated ratio; 0 leaves the choice to requests"
    ),
    "sparsity_max_growth": "perplexity that auto may cost, relative, by the calibration's own text",
    "sparsity_drift_rule": "what tells that activations are no longer those of the calibration",
    "otlp_traces_endpoint": "address of an OpenTelemetry collector (OTLP, HTTP), to trace requests",
    "trace_sample_ratio": "share of the requests that are traced, unless their caller has decided",
    "trace_content": "put prompts and texts into the traces",
    "synthetic_step_time": "seconds a step of the synthetic engine takes",
}


def option_name(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def with_settings(*left_out: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a typer command one option per setting of EngineConfig, but for those `left_out`.

    The command gets those that were given as the mapping `settings`.
    """
    names = [name for name in EngineConfig.__struct_fields__ if name not in left_out]

    return with_options("settings", [_option(name) for name in names])


def engine_config(settings: Mapping[str, Any]) -> EngineConfig:
    """Checks the settings. Raises ConfigError in the words of the command line."""
    return EngineConfig.from_mapping(settings, "command line")


def settings_table() -> Iterable[tuple[str, str, str]]:
    """Name, default and meaning of every setting, as the README's table shows them."""
    for name in EngineConfig.__struct_fields__:
        yield name, _shown(_default(name)), HELP[name]


def _option(name: str) -> inspect.Parameter:
    kind = _plain(get_type_hints(EngineConfig, include_extras=True)[name])
    flag = option_name(name)
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    shown = _shown(_default(name))
    info = typer.Option(
        declaration,
        help=HELP[name],
        show_default=False if shown == "—" else shown,
        rich_help_panel="Engine settings",
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Union[kind, None], info],  # noqa: UP007
    )


def _plain(hint: Any) -> Any:
    """An annotation without None and without bounds, which EngineConfig checks itself."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _plain(next(part for part in get_args(hint) if part is not types.NoneType))
    return _plain(get_args(hint)[0]) if origin is Annotated else hint


def _default(name: str) -> Any:
    fields = EngineConfig.__struct_fields__
    defaults = EngineConfig.__struct_defaults__
    return defaults[fields.index(name)]


def _shown(default: Any) -> str:
    if default is None or default == "":
        return "—"
    if isinstance(default, bool):
        return "true" if default else "false"
    return str(default)
