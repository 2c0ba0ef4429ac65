"""The options of `inferx bench`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from inferx.errors import ConfigError


def bench_command(
    model: Annotated[str, typer.Argument(help="the name that the server has it under")],
    *,
    url: Annotated[str, typer.Option(help="Triton's gRPC endpoint")] = "127.0.0.1:8001",
    openai: Annotated[
        str | None,
        typer.Option(
            help="an OpenAI-compatible endpoint instead, http://HOST:PORT; "
            "its key is taken from $OPENAI_API_KEY"
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="chat completions there, not completions")
    ] = False,
    metrics_url: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of the server's metrics, for the timeline; port 8002 of --url's host "
            "if not given"
        ),
    ] = None,
    concurrency: Annotated[
        str, typer.Option(help="requests in flight, a point each: 1,2,4,8 if no load is given")
    ] = "",
    rate: Annotated[
        str, typer.Option(help="requests a second that arrive at random (Poisson), a point each")
    ] = "",
    trace: Annotated[
        Path | None,
        typer.Option(help="replay recorded arrivals: Mooncake JSONL, BurstGPT or Azure CSV"),
    ] = None,
    speed: Annotated[float, typer.Option(help="of the trace: 2 is twice as fast")] = 1.0,
    workload: Annotated[
        Literal["finance", "medical"] | None,
        typer.Option(help="a workload of practice: 1200 and 350 requests/s at scale 1"),
    ] = None,
    scale: Annotated[float, typer.Option(help="of the workload's rate")] = 1.0,
    prompts: Annotated[
        Path | None,
        typer.Option(help="a prompt a line, or .jsonl with prompt and perhaps output_tokens"),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="a model whose tokenizer counts; the server is asked if not given"),
    ] = None,
    input_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="of a synthetic prompt, 128 if not given; with a workload its context; "
            "a trace's longer ones are cut",
        ),
    ] = None,
    output_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="of an answer, 64 if not given; a trace's longer ones are cut"),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="to count a point; 8 per request in flight if not given"),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="of a point instead; 60 for arrivals if not given"),
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="requests before the counted ones; one per request in flight, "
            "or 5% of the arrivals, if not given",
        ),
    ] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(help="limits that a request keeps, ms: 'ttft:200 tpot:50 e2e:4000'"),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token")] = 0.0,
    ignore_eos: Annotated[
        bool, typer.Option(help="answers of exactly the length that was asked for")
    ] = True,
    timeout: Annotated[float, typer.Option(min=0.001, help="seconds of a request")] = 600.0,
    seed: Annotated[int, typer.Option(help="of prompts and arrivals")] = 0,
    with_perf_analyzer: Annotated[
        bool,
        typer.Option(
            "--with-perf-analyzer", help="Triton's perf_analyzer measures each concurrency too"
        ),
    ] = False,
    output: Annotated[
        list[Path] | None,
        typer.Option(help="a report: NAME.json, NAME.csv or NAME.html; repeatable"),
    ] = None,
) -> None:
    """Load a running server: how fast it answers at which load."""
    given: dict[str, Any] = dict(locals())
    outputs = given.pop("output") or []
    given["concurrency"] = _numbers("--concurrency", concurrency, int)
    given["rate"] = _numbers("--rate", rate, float)
    given["goodput"] = tuple(goodput or ())
    try:
        from inferx.entrypoints.bench import BenchOptions, bench
    except ModuleNotFoundError as error:
        if error.name not in ("tritonclient", "grpc"):
            raise
        raise ConfigError(
            "inferx bench needs Triton's client: pip install 'tritonclient[grpc]'"
        ) from None
    raise typer.Exit(bench(BenchOptions(**given), outputs))


def _numbers(option: str, text: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"{option} {text!r}: numbers with commas between them") from None
