"""Status: what the status page shows, as JSON, however many look at it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import PurePath
from typing import Any, Literal

import msgspec

from inferx import __version__
from inferx.config import EngineConfig
from inferx.entrypoints.openai.errors import ApiError
from inferx.entrypoints.openai.health import metrics_page, says_ready, silence
from inferx.entrypoints.openai.model_metrics import ModelMetrics, models_on
from inferx.entrypoints.openai.models import Models
from inferx.entrypoints.openai.recent_errors import RecentErrors
from inferx.source import PACKAGE_PREFIX, is_hub_id

_FRESH = 0.5  # seconds for which an answer is given again: metrics change about once a second
_SETTINGS = (
    *("engine", "device", "dtype", "kv_cache_dtype", "max_model_len", "max_num_seqs"),
    *("max_num_batched_tokens", "block_size", "enable_prefix_caching", "max_queue_size"),
)
_HISTOGRAMS = ("time_to_first_token_seconds", "inter_token_latency_seconds")

State = Literal["ready", "not ready", "engine down", "unknown"]


class Status:
    """For one event loop. Triton is asked at most every _FRESH seconds, by one at a time."""

    def __init__(
        self,
        models: Models,
        configs: Mapping[str, EngineConfig],
        metrics_url: str,
        executor: Executor,
        errors: RecentErrors,
    ) -> None:
        """`configs`: of the models whose settings are to be shown."""
        self._models = models
        self._configs = configs
        self._metrics_url = metrics_url
        self._executor = executor
        self._errors = errors
        self._asking = asyncio.Lock()
        self._answer = b""
        self._stale = 0.0  # time.monotonic from which on the answer is too old

    async def json(self) -> bytes:
        """`at` is the time of the figures on a clock that never jumps, in seconds."""
        async with self._asking:
            if time.monotonic() >= self._stale:
                self._answer = msgspec.json.encode(await self._look())
                self._stale = time.monotonic() + _FRESH
            return self._answer

    async def _look(self) -> dict[str, Any]:
        names = self._models.names
        ready, (metrics, problem) = await asyncio.gather(
            asyncio.gather(*(says_ready(self._models, name) for name in names)), self._metrics()
        )
        if problem is None and None in ready:
            problem = silence()
        return {
            "version": __version__,
            "at": round(time.monotonic(), 3),
            "problem": problem,
            "models": [
                {
                    "name": name,
                    "state": _state(is_ready, metrics.get(name), problem),
                    "settings": shown_settings(self._configs.get(name)),
                    **_figures(metrics.get(name)),
                }
                for name, is_ready in zip(names, ready, strict=True)
            ],
            "errors": self._errors.shown(),
        }

    async def _metrics(self) -> tuple[dict[str, ModelMetrics], str | None]:
        """By model, or what is wrong."""
        try:
            return models_on(await metrics_page(self._metrics_url, self._executor)), None
        except ApiError as error:
            return {}, error.message


def _state(is_ready: bool | None, metrics: ModelMetrics | None, problem: str | None) -> State:
    if metrics is not None and metrics.engine_is_down:
        return "engine down"
    if is_ready is False:
        return "not ready"
    return "unknown" if problem or is_ready is None else "ready"


def _figures(metrics: ModelMetrics | None) -> dict[str, Any]:
    """`values` is null where there are no figures."""
    if metrics is None:
        return {"values": None, "histograms": {}}
    return {
        "values": metrics.values,
        "histograms": {name: metrics.histogram(name) for name in _HISTOGRAMS},
    }


def shown_settings(config: EngineConfig | None) -> dict[str, Any]:
    """As they were given; null is a default that the engine chooses. Of a path the last part alone:
    where a model lies is the server's own affair."""
    if config is None:
        return {}
    model = config.model
    if not (is_hub_id(model) or model.startswith(PACKAGE_PREFIX)):
        model = PurePath(model).name
    return {"model": model, **{name: getattr(config, name) for name in _SETTINGS}}
