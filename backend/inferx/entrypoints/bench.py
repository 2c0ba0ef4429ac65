"""`inferx bench`: loads a running server, shows how it goes, and writes the report."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

# grpcio's older poller takes much less of a core than the default one, and is chosen at import.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")

from inferx_client.bench.errors import BenchError
from inferx_client.bench.html import as_html
from inferx_client.bench.loads import (
    ClosedLoad,
    OpenLoad,
    concurrency_sweep,
    poisson_sweep,
    replay,
)
from inferx_client.bench.measure import token_count
from inferx_client.bench.openai_target import openai_target
from inferx_client.bench.prompts import RequestSource, Words, of_file, synthetic
from inferx_client.bench.report import as_csv
from inferx_client.bench.run import PerfAnalyzerCheck, run_loads
from inferx_client.bench.statistics import parse_limits
from inferx_client.bench.target import Sending, Target, triton_target
from inferx_client.bench.traces import read_trace
from inferx_client.bench.workloads import WORKLOADS, Name, requests_of

from inferx.entrypoints.bench_display import Display
from inferx.errors import ConfigError
from inferx.outputs import check_writable, write

_SEEDS = 1_000_003  # apart: the seeds of two points of a run
_DEFAULT_LEVELS = (1, 2, 4, 8)
_DEFAULT_INPUT, _DEFAULT_OUTPUT = 128, 64
_DEFAULT_SECONDS = 60.0
MAX_FAILED = 0.01  # of a point's requests; where more fail, its figures are of a smaller load


@dataclass(frozen=True)
class BenchOptions:
    """The command's options; None where a default depends on others."""

    model: str
    url: str = "127.0.0.1:8001"
    openai: str | None = None
    chat: bool = False
    metrics_url: str | None = None
    concurrency: Sequence[int] = ()
    rate: Sequence[float] = ()
    trace: Path | None = None
    speed: float = 1.0
    workload: Name | None = None
    scale: float = 1.0
    prompts: Path | None = None
    tokenizer: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    requests: int | None = None
    seconds: float | None = None
    warm_up: int | None = None
    goodput: Sequence[str] = ()
    temperature: float = 0.0
    ignore_eos: bool = True
    timeout: float = 600.0
    seed: int = 0
    with_perf_analyzer: bool = False

    def check(self) -> None:
        """Raises ConfigError for options that exclude each other."""
        ways = [
            name for name in ("concurrency", "rate", "trace", "workload") if getattr(self, name)
        ]
        if len(ways) > 1:
            raise ConfigError(f"--{ways[0]} and --{ways[1]} are two loads: give one of them")
        if self.prompts and (self.trace or self.workload):
            raise ConfigError("--prompts: a trace and a workload bring prompts of their own")
        if self.chat and not self.openai:
            raise ConfigError("--chat needs --openai URL")
        if self.with_perf_analyzer and (self.openai or not (self.concurrency or not ways)):
            raise ConfigError("--with-perf-analyzer needs --concurrency through Triton's gRPC")

    def shown(self) -> dict[str, Any]:
        """What was given, for the report."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value.name
            if isinstance(value, Path)
            else list(value)
            if isinstance(value, tuple)
            else value
            for name, value in values.items()
            if value is not None and value is not False and value != ()
        }


def bench(options: BenchOptions, paths: Sequence[Path]) -> int:
    """Runs the loads and writes each of `paths` by its suffix: .json, .csv, .html.

    Returns an exit status: 1, after all is written, where a point has more than MAX_FAILED of its
    requests failed. Raises ConfigError, OutputError.
    """
    writers = [(path, _writer(path)) for path in paths]
    options.check()
    try:
        with Display() as display:
            run = asyncio.run(_run(options, display)).as_json()
    except BenchError as error:
        raise ConfigError(str(error)) from None
    display.summary(run)
    for path, as_text in writers:
        write("--output", path, as_text(run).encode())
        display.wrote(path)
    complaints = [said for point in run["points"] if (said := _complaint(point))]
    for complaint in complaints:
        display.complains(complaint)
    return int(bool(complaints))


def _complaint(point: Mapping[str, Any]) -> str | None:
    """What is wrong with a point of the report, in a sentence; None: nothing."""
    label, requests, errors = point["label"], point["requests"], point["errors"]
    failed = sum(errors.values())
    if failed <= MAX_FAILED * requests:
        return None
    reason = max(errors, key=errors.__getitem__)
    return (
        f"{label}: {failed} of {requests} requests failed, {errors[reason]} of them with {reason}: "
        "its figures are of the others alone"
    )


def _writer(path: Path) -> Callable[[dict[str, Any]], str]:
    writers = {".json": lambda run: json.dumps(run, indent=1), ".csv": as_csv, ".html": as_html}
    if path.suffix not in writers:
        raise ConfigError(f"--output {path}: the name has to end with .json, .csv or .html")
    check_writable("--output", path)
    return writers[path.suffix]


async def _run(options: BenchOptions, display: Display) -> Any:
    workload = options.workload
    sending = Sending(
        options.temperature,
        options.ignore_eos,
        confidence=workload is not None and WORKLOADS[workload].confidence,
        timeout=options.timeout,
    )
    limits = parse_limits(options.goodput)
    async with _target(options, sending) as target:
        display.says("asking the server how it counts tokens")
        loads = await _loads(options, _counter(options, target))
        return await run_loads(
            target,
            loads,
            title=f"{options.model}: {workload or _kind(options)}",
            settings=options.shown(),
            limits=limits or None,
            metrics_url=_metrics_url(options),
            model=options.model,
            check=PerfAnalyzerCheck(options.url, options.model, sending)
            if options.with_perf_analyzer
            else None,
            watcher=display,
        )


def _kind(options: BenchOptions) -> str:
    if options.trace:
        return f"trace {options.trace.name}"
    return "arrivals at random" if options.rate else "requests in flight"


def _target(options: BenchOptions, sending: Sending) -> AbstractAsyncContextManager[Target]:
    if options.openai is None:
        return triton_target(options.url, options.model, sending)
    key = os.environ.get("OPENAI_API_KEY")
    return openai_target(options.openai, options.model, sending, chat=options.chat, api_key=key)


def _metrics_url(options: BenchOptions) -> str | None:
    """Triton's usual port beside its gRPC port, if nothing else is said."""
    if options.metrics_url or options.openai:
        return options.metrics_url
    host = options.url.rpartition(":")[0]
    return f"{host}:8002"


def _counter(options: BenchOptions, target: Target) -> Callable[[str], Awaitable[int]]:
    if options.tokenizer is None:
        return lambda text: token_count(target, text)
    from inferx.entrypoints.serving import local_model
    from inferx.source import resolve
    from inferx.text.tokenizer import Tokenizer  # loads its library

    settings, roots = local_model({"model": options.tokenizer, "load_format": "dummy"})
    roots = roots or [Path.cwd()]
    tokenizer = Tokenizer.from_source(resolve(settings["model"], roots=roots, needs_weights=False))

    async def count(text: str) -> int:
        return len(tokenizer.encode(text))

    return count


async def _loads(
    options: BenchOptions, count: Callable[[str], Awaitable[int]]
) -> Sequence[ClosedLoad | OpenLoad]:
    common = {"count": options.requests, "warm_up": options.warm_up}
    outputs = options.output_tokens or _DEFAULT_OUTPUT
    if options.prompts is not None:
        source = of_file(options.prompts, outputs)
        return _sweep(options, lambda place: source)
    if options.trace is not None:
        trace = read_trace(options.trace)
        return [
            replay(
                trace, await Words.of(count), speed=options.speed, seconds=options.seconds,
                max_input_tokens=options.input_tokens, max_output_tokens=options.output_tokens,
                seed=options.seed, **common,
            )
        ]  # fmt: skip
    words = await Words.of(count)
    if options.workload is not None:
        source = requests_of(
            options.workload, words, context=options.input_tokens,
            output_tokens=options.output_tokens, seed=options.seed,
        )  # fmt: skip
        return poisson_sweep(
            [WORKLOADS[options.workload].rate * options.scale], lambda place: source,
            kind="workload", seconds=options.seconds or _DEFAULT_SECONDS, seed=options.seed,
            **common,
        )  # fmt: skip
    inputs = options.input_tokens or _DEFAULT_INPUT
    return _sweep(
        options,
        lambda place: synthetic(words, inputs, outputs, options.seed + _SEEDS * place),
    )


def _sweep(
    options: BenchOptions, source: Callable[[int], RequestSource]
) -> Sequence[ClosedLoad | OpenLoad]:
    common = {"count": options.requests, "warm_up": options.warm_up}
    if options.rate:
        return poisson_sweep(
            options.rate, source, kind="rate", seconds=options.seconds or _DEFAULT_SECONDS,
            seed=options.seed, **common,
        )  # fmt: skip
    levels = options.concurrency or _DEFAULT_LEVELS
    return concurrency_sweep(levels, source, seconds=options.seconds, **common)
