"""The server's own view of a run: batch, queue and KV use, read from its metrics port."""

from __future__ import annotations

import asyncio
import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import NamedTuple

INTERVAL = 0.5  # seconds between two readings
_TIMEOUT = 5.0
_PREFIXES = ("inferx:", "vllm:")


class Reading(NamedTuple):
    """`at`: seconds after the run's begin; `kv_usage`: share of the pages in use."""

    at: float
    running: float
    waiting: float
    kv_usage: float


def parse(text: str, model: str) -> tuple[float, float, float] | None:
    """Running, waiting and KV use of a model in Prometheus text; None where they are not there.

    InferX's families have vLLM's names behind another prefix, so that either server is understood.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if name.startswith(_PREFIXES) and (f'"{model}"' in rest):
            found[name] = found.get(name, 0.0) + float(rest.rpartition(" ")[2])
    for prefix in _PREFIXES:
        with contextlib.suppress(KeyError):
            return (
                found[f"{prefix}num_requests_running"],
                found[f"{prefix}num_requests_waiting"],
                found[f"{prefix}kv_cache_usage_perc"],
            )
    return None


@contextlib.asynccontextmanager
async def timeline(url: str | None, model: str) -> AsyncIterator[list[Reading]]:
    """Readings of http://`url`/metrics while the context lasts; none if nobody answers there."""
    readings: list[Reading] = []
    if url is None:
        yield readings
        return
    start = time.perf_counter()

    async def read() -> None:
        while True:
            text = await asyncio.to_thread(_fetch, url)
            if found := parse(text, model):
                readings.append(Reading(time.perf_counter() - start, *found))
            await asyncio.sleep(INTERVAL)

    task = asyncio.create_task(read())
    try:
        yield readings
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _fetch(url: str) -> str:
    """Empty where nobody answers: a run does not fail over its picture."""
    try:
        with urllib.request.urlopen(f"http://{url}/metrics", timeout=_TIMEOUT) as answer:
            return answer.read().decode("utf-8", "replace")
    except (OSError, urllib.error.URLError, ValueError):
        return ""
