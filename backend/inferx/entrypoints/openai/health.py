"""What Triton says about its models: readiness over gRPC, the rest on its metrics page."""

from __future__ import annotations

import asyncio
import http.client
from concurrent.futures import Executor

from inferx.entrypoints.openai.errors import ApiError
from inferx.entrypoints.openai.model_metrics import models_on
from inferx.entrypoints.openai.models import Models

_SECONDS = 5.0


async def metrics_page(url: str, executor: Executor) -> str:
    """Raises ApiError."""
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, _fetch, url)
    except (OSError, http.client.HTTPException):
        raise ApiError(503, "Triton's metrics page does not answer") from None


async def unhealthy(models: Models, metrics_url: str, executor: Executor) -> str | None:
    """The sentence that says why requests would fail; None: they would not.

    Older Triton servers call a model ready whose engine process has ended, so the engines' own
    gauge counts besides.
    """
    clients = [models.get(name).client for name in models.names]
    ready = await asyncio.gather(*(client.is_ready() for client in clients))
    missing = [c.model for c, is_ready in zip(clients, ready, strict=True) if not is_ready]
    if missing:
        return f"not ready: {', '.join(missing)}"
    metrics = models_on(await metrics_page(metrics_url, executor))
    down = [name for name in models.names if name in metrics and metrics[name].engine_is_down]
    return f"the engine is not running: {', '.join(down)}" if down else None


def _fetch(url: str) -> str:
    connection = http.client.HTTPConnection(url, timeout=_SECONDS)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
