"""inferx serve | generate | chat | bench | convert | memory | sparsity | doctor"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferx.entrypoints import api_server, sparsity
from inferx.entrypoints.bench_command import bench_command
from inferx.entrypoints.doctor import EMBEDDED_MODEL, command, examine
from inferx.entrypoints.plain_help import PlainHelp
from inferx.entrypoints.sampling_options import with_sampling
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

Stats = Annotated[
    bool, typer.Option("--stats", help="after an answer, the time to its first token and its pace")
]


@app.command("serve", cls=PlainHelp)
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
    openai: api_server.OpenAI = True,
    openai_port: api_server.OpenAIPort = 9000,
    api_key: api_server.ApiKey = None,
    openai_max_requests: api_server.OpenAIMaxRequests = 1024,
    openai_max_body: api_server.OpenAIMaxBody = 8 << 20,
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
            frontend=api_server.openai_frontend(
                openai, openai_port, api_key, openai_max_requests, openai_max_body
            ),
        )
    )


@app.command("generate", cls=PlainHelp)
@with_settings("model")
@with_sampling(max_tokens=128, temperature=0.0)
def generate_command(
    model: Model,
    prompt: Annotated[
        str | None, typer.Argument(help="what to continue; standard input if not given")
    ] = None,
    *,
    stats: Stats = False,
    sampling: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Continue a text with a model, here and without a server."""
    from inferx.engine.sampling import SamplingParams
    from inferx.entrypoints import offline  # loads the tokenizer's library

    params = SamplingParams.parse(sampling)
    text = offline.read_prompt() if prompt is None else prompt
    with offline.loaded({**settings, "model": model}) as llm:
        offline.show(llm.stream(text, params), stats=stats)


@app.command("chat", cls=PlainHelp)
@with_settings("model")
@with_sampling(max_tokens=512, temperature=0.7, top_p=0.95)
def chat_command(
    model: Model,
    *,
    system: Annotated[str | None, typer.Option(help="a system message")] = None,
    stats: Stats = False,
    sampling: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Talk with a model, here and without a server. Ctrl-C ends an answer, Ctrl-D the talk."""
    from inferx.engine.sampling import SamplingParams
    from inferx.entrypoints import offline

    params = SamplingParams.parse(sampling)
    with offline.loaded({**settings, "model": model}) as llm:
        offline.talk(llm, params, system, stats=stats)


app.command("bench")(bench_command)


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


@app.command("memory", cls=PlainHelp)
@with_settings("model")
def memory_command(
    model: Model,
    *,
    requests: Annotated[int, typer.Option(help="of the load, all at once", min=1)] = 16,
    prompt_tokens: Annotated[int, typer.Option(help="of each request", min=1)] = 128,
    output_tokens: Annotated[int, typer.Option(help="of each request", min=1)] = 32,
    picture: Annotated[
        list[Path] | None,
        typer.Option(help="draw the curves to this .png or .svg file; repeatable"),
    ] = None,
    settings: dict[str, Any],
) -> None:
    """Measure peak and resident memory while a model starts, and under a short load."""
    from inferx.entrypoints.memory_report import Load, report

    load = Load(requests, prompt_tokens, output_tokens)
    report({**settings, "model": model}, load, picture or [])


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
    typer.echo(f"\nready: try '{command(model, findings)}'")


def main() -> None:
    report_errors(app)
