"""What Triton says about its models: readiness over gRPC, the rest on its metrics page."""

from __future__ import annotations

import asyncio
import http.client
from concurrent.futures import Executor

from inferx.entrypoints.openai.errors import ApiError
from inferx.entrypoints.openai.model_metrics import models_on
from inferx.entrypoints.openai.models import Models

READY_TIMEOUT = 2.0  # seconds
PAGE_TIMEOUT = 5.0  # likewise


async def metrics_page(url: str, executor: Executor) -> str:
    """Raises ApiError, at the latest after PAGE_TIMEOUT, also where the executor is busy."""
    fetched = asyncio.get_running_loop().run_in_executor(executor, _fetch, url)
    try:
        return await asyncio.wait_for(fetched, PAGE_TIMEOUT)
    except (OSError, http.client.HTTPException, asyncio.TimeoutError):
        raise ApiError(503, "Triton's metrics page does not answer") from None


async def says_ready(models: Models, name: str) -> bool | None:
    """None where Triton does not say it in time: it, or this process, has too much to do."""
    try:
        return await asyncio.wait_for(models.get(name).client.is_ready(), READY_TIMEOUT)
    except asyncio.TimeoutError:
        return None


def silence() -> str:
    """What is wrong where Triton does not say it."""
    return f"Triton has not said within {READY_TIMEOUT:g} s which models are ready"


async def unhealthy(models: Models, metrics_url: str, executor: Executor) -> str | None:
    """The sentence that says why requests would fail; None: they would not.

    Older Triton servers call a model ready whose engine process has ended, so the engines' own
    gauge counts besides.
    """
    ready = await asyncio.gather(*(says_ready(models, name) for name in models.names))
    missing = [name for name, one in zip(models.names, ready, strict=True) if one is False]
    if missing:
        return f"not ready: {', '.join(missing)}"
    if None in ready:
        return silence()
    metrics = models_on(await metrics_page(metrics_url, executor))
    down = [name for name in models.names if name in metrics and metrics[name].engine_is_down]
    return f"the engine is not running: {', '.join(down)}" if down else None


def _fetch(url: str) -> str:
    connection = http.client.HTTPConnection(url, timeout=PAGE_TIMEOUT)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
