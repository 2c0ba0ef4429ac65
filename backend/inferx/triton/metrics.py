"""The model's Prometheus metrics, on the server's own metrics port.

Every call into pb_utils is a round trip to the server, so the counts are kept in this process and
written about once a second, those that changed. pb_utils' histograms take one observation a call:
ours are families of counters, `_bucket`, `_sum` and `_count`. Labels are the model, its version,
and a bound or an outcome of a short list, never anything of a request.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils

from inferx.engine.client import EngineClient
from inferx.triton.stats import ChannelStats, Histogram

logger = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds
# Between two values: a write keeps the interpreter for its round trip, in which no shard can send.
PAUSE = 0.005  # seconds


class Sample(NamedTuple):
    family: str
    value: float
    label: tuple[str, str] | None = None  # besides model and version


_COUNTERS = {
    "inferx_requests_total": "Requests that ended, by outcome",
    "inferx_prompt_tokens_total": "Prompt tokens of answered requests",
    "inferx_output_tokens_total": "Generated tokens sent to clients",
    "inferx_engine_steps_total": "Steps of the engine",
    "inferx_preemptions_total": "Sequences that gave up their KV pages and were recomputed",
    "inferx_prefix_cache_query_tokens_total": "Prompt tokens looked up in the prefix cache",
    "inferx_prefix_cache_hit_tokens_total": "Prompt tokens found in the prefix cache",
    "inferx_engine_restarts_total": "Times that the engine process was started again",
}
_GAUGES = {
    "inferx_engine_up": "1 while the engine process answers, else 0",
    "inferx_sequences_running": "Sequences in the running batch",
    "inferx_sequences_waiting": "Sequences that wait for a place in the batch",
    "inferx_kv_pages_free": "KV pages that hold nothing",
    "inferx_kv_pages_cached": "KV pages that hold a prefix that nobody uses now",
    "inferx_kv_pages_used": "KV pages that sequences use",
}
_HISTOGRAMS = {
    "inferx_time_to_first_token_seconds": "From a streaming request's arrival to its first text",
    "inferx_inter_token_seconds": "Between two deltas of a stream, divided by their tokens",
    "inferx_request_seconds": "From a request's arrival to its end",
}


def _families() -> dict[str, tuple[str, Any]]:
    counter, gauge = pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE
    families = {name: (text, counter) for name, text in _COUNTERS.items()}
    families |= {name: (text, gauge) for name, text in _GAUGES.items()}
    for name, text in _HISTOGRAMS.items():
        families[f"{name}_bucket"] = (f"{text}: observations up to the bound", counter)
        families[f"{name}_sum"] = (f"{text}: their sum", counter)
        families[f"{name}_count"] = (f"{text}: their number", counter)
    return families


def samples(channel: ChannelStats, engine: EngineClient) -> Iterator[Sample]:
    """All that is to be seen now."""
    for outcome, count in channel.outcomes.items():
        yield Sample("inferx_requests_total", count, ("outcome", outcome))
    yield Sample("inferx_prompt_tokens_total", channel.prompt_tokens)
    yield Sample("inferx_output_tokens_total", channel.output_tokens)
    stats = engine.stats
    yield Sample("inferx_engine_steps_total", stats.steps)
    yield Sample("inferx_preemptions_total", stats.preemptions)
    yield Sample("inferx_prefix_cache_query_tokens_total", stats.prefix_cache_queries)
    yield Sample("inferx_prefix_cache_hit_tokens_total", stats.prefix_cache_hits)
    yield Sample("inferx_engine_restarts_total", engine.num_restarts)
    yield Sample("inferx_engine_up", float(engine.is_up))
    yield Sample("inferx_sequences_running", stats.running)
    yield Sample("inferx_sequences_waiting", stats.waiting)
    yield Sample("inferx_kv_pages_free", stats.free_blocks)
    yield Sample("inferx_kv_pages_cached", stats.cached_blocks)
    yield Sample("inferx_kv_pages_used", stats.used_blocks)
    histograms = (channel.ttft, channel.inter_token, channel.e2e)
    for name, histogram in zip(_HISTOGRAMS, histograms, strict=True):
        yield from _histogram(name, histogram)


def _histogram(name: str, histogram: Histogram) -> Iterator[Sample]:
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
        yield Sample(f"{name}_bucket", count, ("le", bound))
    yield Sample(f"{name}_sum", histogram.sum)
    yield Sample(f"{name}_count", sum(histogram.counts))


class MetricsWriter:
    """Writes what `read` yields, about once a second."""

    def __init__(self, model: str, version: str, read: Callable[[], Iterator[Sample]]) -> None:
        self._labels = {"model": model, "version": version}
        self._read = read
        self._families = {
            name: _kept(pb_utils.MetricFamily(name=name, description=text, kind=kind))
            for name, (text, kind) in _families().items()
        }
        self._metrics: dict[tuple[str, tuple[str, str] | None], Any] = {}
        self._written: dict[tuple[str, tuple[str, str] | None], float] = {}
        self._stop = threading.Event()
        for sample in read():
            self._write(sample)
        self._thread = threading.Thread(target=self._run, name="inferx-metrics", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """Whether the thread ended within `timeout` seconds; the gauges then are 0."""
        self._stop.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        for (family, _), metric in self._metrics.items():
            if family in _GAUGES:
                metric.set(0.0)
        return True

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            try:
                for sample in self._read():
                    if self._write(sample) and self._stop.wait(PAUSE):
                        return
            except Exception as error:
                logger.error("writing metrics failed: %s", type(error).__name__)

    def _write(self, sample: Sample) -> bool:
        """Whether there was something to write."""
        key = (sample.family, sample.label)
        if key not in self._metrics:
            labels = {**self._labels, **dict([sample.label] if sample.label else [])}
            self._metrics[key] = self._families[sample.family].Metric(labels=labels)
        if (
            sample.family in _GAUGES
        ):  # always: an instance that ends later than it should sets it to 0
            self._metrics[key].set(float(sample.value))
            return True
        before = self._written.get(key, 0.0)
        if sample.value == before:
            return False
        self._metrics[key].increment(float(sample.value - before))
        self._written[key] = sample.value
        return True


def _kept(family: Any) -> Any:
    """Keeps an object, and so its place in the server, beyond the end of this interpreter.

    When a model is loaded again while an old stub lingers, both have the same metrics. The server
    (core r24.10 and later) counts the users of a metric for each of them apart: the old stub's
    leaving would free what the new one writes to. A counter simply goes on after a reload.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(family))
    return family
