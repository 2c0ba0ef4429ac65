"""python -m inferx.entrypoints.api_server --model … : serves a model through Triton.

The options are EngineConfig's settings under vLLM's names; `inferx serve MODEL` does the same.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from inferx.entrypoints.serving import Endpoint, serve
from inferx.entrypoints.settings import with_settings
from inferx.entrypoints.shell import report_errors

_PORT = "; 0 takes a free one"

Host = Annotated[str, typer.Option(help="address to listen on; the network's is 0.0.0.0")]
HttpPort = Annotated[int, typer.Option(help="HTTP port" + _PORT, min=0, max=65535)]
GrpcPort = Annotated[int, typer.Option(help="gRPC port" + _PORT, min=0, max=65535)]
MetricsPort = Annotated[int, typer.Option(help="Prometheus port" + _PORT, min=0, max=65535)]
ServedName = Annotated[
    str | None, typer.Option(help="the model's name for clients; made of --model if not given")
]
Server = Annotated[
    str | None,
    typer.Option(
        "--tritonserver",
        help="the program, or the folder with bin/tritonserver; else $TRITONSERVER, PATH, "
        "/opt/tritonserver and the embedded one are tried",
    ),
]


@with_settings()
def api_server(
    *,
    host: Host = "127.0.0.1",
    http_port: HttpPort = 8000,
    grpc_port: GrpcPort = 8001,
    metrics_port: MetricsPort = 8002,
    served_model_name: ServedName = None,
    tritonserver: Server = None,
    settings: dict[str, Any],
) -> None:
    """Serves a model through Triton until it is interrupted."""
    endpoint = Endpoint(host, http_port, grpc_port, metrics_port)
    status = serve(settings, endpoint, name=served_model_name, tritonserver=tritonserver)
    raise typer.Exit(status)


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(api_server)
    report_errors(app)


if __name__ == "__main__":
    main()
