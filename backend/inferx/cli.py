"""inferx serve | generate | chat | convert | sparsity | doctor"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferx.entrypoints import api_server, sparsity
from inferx.entrypoints.doctor import EMBEDDED_MODEL, examine
from inferx.entrypoints.serving import Endpoint, local_model, serve
from inferx.entrypoints.settings import with_settings
from inferx.entrypoints.shell import report_errors

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="LLM serving through NVIDIA Triton: continuous batching over a paged KV cache.",
)
app.add_typer(sparsity.app, name="sparsity")

Model = Annotated[
    str,
    typer.Argument(
        help="a folder, a .gguf file, a hub id, or package:NAME for one in a Python package",
        show_default=False,
    ),
]

MaxTokens = Annotated[int, typer.Option(help="length of an answer at most")]
Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token")]
TopP = Annotated[float, typer.Option(help="share of the likeliest tokens to draw from")]


@app.command("serve")
@with_settings("model")
def serve_command(
    model: Model,
    *,
    host: api_server.Host = "127.0.0.1",
    http_port: api_server.HttpPort = 8000,
    grpc_port: api_server.GrpcPort = 8001,
    metrics_port: api_server.MetricsPort = 8002,
    served_model_name: api_server.ServedName = None,
    tritonserver: api_server.Server = None,
    settings: dict[str, Any],
) -> None:
    """Serve a model through Triton until interrupted."""
    endpoint = Endpoint(host, http_port, grpc_port, metrics_port)
    raise typer.Exit(
        serve(
            {**settings, "model": model},
            endpoint,
            name=served_model_name,
            tritonserver=tritonserver,
        )
    )


@app.command("generate")
@with_settings("model")
def generate_command(
    model: Model,
    prompt: Annotated[
        str | None, typer.Argument(help="what to continue; standard input if not given")
    ] = None,
    *,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="ends the text; repeatable")] = None,
    settings: dict[str, Any],
) -> None:
    """Continue a text with a model, here and without a server."""
    from inferx.engine.sampling import SamplingParams
    from inferx.entrypoints import offline  # loads the tokenizer's library

    text = sys.stdin.read() if prompt is None else prompt
    params = SamplingParams.parse(
        {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "stop": stop or [],
        }
    )
    with offline.loaded({**settings, "model": model}) as llm:
        offline.show(llm.stream(text, params))


@app.command("chat")
@with_settings("model")
def chat_command(
    model: Model,
    *,
    system: Annotated[str | None, typer.Option(help="a system message")] = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    settings: dict[str, Any],
) -> None:
    """Talk with a model, here and without a server."""
    from inferx.engine.sampling import SamplingParams
    from inferx.entrypoints import offline

    params = SamplingParams.parse(
        {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p}
    )
    with offline.loaded({**settings, "model": model}) as llm:
        offline.talk(llm, params, system)


@app.command("convert")
def convert_command(
    source: Annotated[str, typer.Argument(help="a .gguf file, or package:NAME")],
    folder: Annotated[Path, typer.Argument(help="a new folder")],
    *,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="of the weights")
    ] = "bfloat16",
) -> None:
    """Write a Hugging Face folder from a GGUF file."""
    from inferx.convert import convert  # loads torch
    from inferx.source import resolve

    settings, roots = local_model({"model": source})
    with Console(stderr=True).status(f"converting {escape(source)}"):
        convert(resolve(settings["model"], roots=roots or [Path.cwd()]), folder, dtype=dtype)
    typer.echo(f"wrote {folder}: try 'inferx generate {folder} \"Once upon a time\"'")


@app.command("doctor")
def doctor_command(
    model: Annotated[str, typer.Argument(help="a model to look for")] = EMBEDDED_MODEL,
    *,
    tritonserver: api_server.Server = None,
) -> None:
    """Say what of server, Python, GPU and model is found, and what to do about the rest."""
    findings = examine(tritonserver, model)
    marks = {"found": "[green]found[/]", "missing": "[red]missing[/]", "absent": "[dim]absent[/]"}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(finding.what, marks[finding.state], escape(finding.detail))
    Console(highlight=False, soft_wrap=False).print(table)
    missing = sum(finding.state == "missing" for finding in findings)
    if missing:
        typer.echo(f"\n{missing} missing: the text beside each says what to do")
        raise typer.Exit(1)
    typer.echo(f"\nready: try 'inferx serve {model}'")


def main() -> None:
    report_errors(app)
