"""python -m inferx.entrypoints.api_server --model … : serves a model through Triton.

The options are EngineConfig's settings under vLLM's names; `inferx serve MODEL` does the same.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from inferx.entrypoints.frontend import Frontend
from inferx.entrypoints.plain_help import PlainHelp
from inferx.entrypoints.serving import Endpoint, serve
from inferx.entrypoints.settings import with_settings
from inferx.entrypoints.shell import report_errors
from inferx.errors import ConfigError

_PORT = "; 0 takes a free one"

Host = Annotated[str, typer.Option(help="address to listen on; the network's is 0.0.0.0")]
HttpPort = Annotated[int, typer.Option(help="HTTP port" + _PORT, min=0, max=65535)]
GrpcPort = Annotated[int, typer.Option(help="gRPC port" + _PORT, min=0, max=65535)]
MetricsPort = Annotated[int, typer.Option(help="Prometheus port" + _PORT, min=0, max=65535)]
ServedName = Annotated[
    str | None, typer.Option(help="the model's name for clients; made of the model's if not given")
]
Server = Annotated[
    str | None,
    typer.Option(
        "--tritonserver",
        help="the program, or the folder with bin/tritonserver; else $TRITONSERVER, PATH, "
        "/opt/tritonserver and the embedded one are tried",
    ),
]

OpenAI = Annotated[
    bool, typer.Option("--openai/--no-openai", help="the OpenAI-compatible endpoint beside Triton")
]
OpenAIPort = Annotated[int, typer.Option(help="its port" + _PORT, min=0, max=65535)]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="INFERX_API_KEY",
        help="what its clients have to send; better in the environment, as every user of a "
        "machine sees command lines",
    ),
]
OpenAIMaxRequests = Annotated[
    int, typer.Option(help="requests that it takes at once; one more gets 429", min=1)
]
OpenAIMaxBody = Annotated[
    int, typer.Option(help="bytes of a request's body; a larger one gets 413", min=1)
]


def openai_frontend(
    openai: bool, port: int, api_key: str | None, max_requests: int, max_body: int
) -> Frontend | None:
    """Raises ConfigError for an API key that asks for nothing: an unset variable of a script."""
    if not openai:
        return None
    if api_key is not None and not api_key.strip():
        raise ConfigError(
            "command line: api_key is empty, which would let everybody in: give a key, or leave it "
            "out for an open endpoint"
        )
    # A file of secrets ends with a line break, which no client can send
    return Frontend(port, api_key and api_key.strip(), max_requests, max_body)


@with_settings()
def api_server(
    *,
    host: Host = "127.0.0.1",
    http_port: HttpPort = 8000,
    grpc_port: GrpcPort = 8001,
    metrics_port: MetricsPort = 8002,
    served_model_name: ServedName = None,
    tritonserver: Server = None,
    openai: OpenAI = True,
    openai_port: OpenAIPort = 9000,
    api_key: ApiKey = None,
    openai_max_requests: OpenAIMaxRequests = 1024,
    openai_max_body: OpenAIMaxBody = 8 << 20,
    settings: dict[str, Any],
) -> None:
    """Serve a model through Triton until interrupted."""
    endpoint = Endpoint(host, http_port, grpc_port, metrics_port)
    status = serve(
        settings,
        endpoint,
        name=served_model_name,
        tritonserver=tritonserver,
        frontend=openai_frontend(
            openai, openai_port, api_key, openai_max_requests, openai_max_body
        ),
    )
    raise typer.Exit(status)


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=PlainHelp)(api_server)
    report_errors(app)


if __name__ == "__main__":
    main()
