"""The Prometheus metrics of a model: what they are, and their samples as of now.

Names are vLLM's where it has the metric, with our prefix. Histograms are families of counters,
`_bucket`, `_sum` and `_count`. Labels are a bound (`le`) or a reason of a short list; whoever
writes the samples adds the model and its version. Never anything of a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from inferx.observe.histogram import Histogram
from inferx.observe.request_stats import RequestStats

if TYPE_CHECKING:
    from inferx.engine.messages import EngineStats, SparseStats

HISTOGRAM_TURNS = 3


class Sample(NamedTuple):
    family: str
    value: float
    label: tuple[str, str] | None = None


class Engine(Protocol):
    """What the samples need of an EngineClient."""

    @property
    def stats(self) -> EngineStats: ...
    @property
    def is_up(self) -> bool: ...
    @property
    def num_restarts(self) -> int: ...


GAUGES = {
    "inferx:num_requests_running": "sequences in the running batch",
    "inferx:num_requests_waiting": "sequences that wait for a place in it",
    "inferx:batch_size": "sequences that the last step worked on",
    "inferx:kv_cache_usage_perc": "share of the KV pages that sequences use, 0 to 1",
    "inferx:kv_pages_free": "KV pages that hold nothing",
    "inferx:kv_pages_cached": "KV pages that hold a prefix that nobody uses now",
    "inferx:kv_pages_used": "KV pages that sequences use",
    "inferx:engine_up": "1 while the engine process answers, else 0",
    "inferx:engine_memory_resident_bytes": (
        "memory that the engine holds: on a GPU torch's, on a CPU the process's"
    ),
    "inferx:engine_memory_peak_bytes": "the most that it has held, the start included",
    "inferx:sparse_union_density": (
        "share of the layers' weights that the last probed sparse step read"
    ),
    "inferx:sparse_masked_energy": "share of its activations' energy that it left out",
}
COUNTERS = {
    "inferx:prompt_tokens_total": "prompt tokens of answered requests",
    "inferx:generation_tokens_total": "generated tokens sent to clients",
    "inferx:prefix_cache_queries_total": "prompt tokens looked up in the prefix cache",
    "inferx:prefix_cache_hits_total": "prompt tokens found there",
    "inferx:request_success_total": (
        "requests that were answered, by `finished_reason`: stop or length"
    ),
    "inferx:request_rejections_total": (
        "requests that ended with an error, by `reason`: invalid (INVALID_ARG) or unavailable "
        "(UNAVAILABLE)"
    ),
    "inferx:request_cancellations_total": "requests cancelled by the client or its deadline",
    "inferx:request_failures_total": "requests that ended with INTERNAL",
    "inferx:num_preemptions_total": "sequences that gave up their pages and were computed again",
    "inferx:engine_steps_total": "steps of the engine",
    "inferx:sparse_steps_total": "steps on the sparse path",
    "inferx:sparse_choices_total": "steps whose requests left the path to its predicted cost",
    "inferx:sparse_drifts_total": (
        "times that the sparse path was made denser, by `reason`: drift from the calibration, or "
        "broken (activations not finite, or zeros alone)"
    ),
    "inferx:sparse_predicted_seconds_total": "time that the choices were predicted to take",
    "inferx:sparse_measured_seconds_total": "time that they took",
    "inferx:sparse_regret_seconds_total": (
        "what they took longer than the other path was predicted to take"
    ),
    "inferx:engine_restarts_total": "times that the engine process was started again",
    "inferx:traces_dropped_total": "requests whose trace could not be kept or sent",
}
HISTOGRAMS = {
    "inferx:time_to_first_token_seconds": "from a streaming request's arrival to its first text",
    "inferx:inter_token_latency_seconds": "between two parts of a stream, divided by their tokens",
    "inferx:request_queue_time_seconds": "from arrival in the engine to the first step",
    "inferx:request_prefill_time_seconds": "from there to the first token",
    "inferx:request_decode_time_seconds": "from there to the last token",
    "inferx:e2e_request_latency_seconds": "from a request's arrival to its end",
    "inferx:request_prompt_tokens": "prompt tokens of a request",
    "inferx:request_generation_tokens": "generated tokens of a request, all choices together",
    "inferx:engine_step_time_seconds": "the host's part of a step, and its wait for the device",
}


def families() -> Iterator[tuple[str, str, Literal["counter", "gauge"]]]:
    """Name, text and kind of each family that is written."""
    for name, text in GAUGES.items():
        yield name, text, "gauge"
    for name, text in COUNTERS.items():
        yield name, text, "counter"
    for name, text in HISTOGRAMS.items():
        yield f"{name}_bucket", f"{text}: observations up to the bound", "counter"
        yield f"{name}_sum", f"{text}: their sum", "counter"
        yield f"{name}_count", f"{text}: their number", "counter"


def samples(
    requests: RequestStats, engine: Engine, traces_dropped: int, turn: int | None = None
) -> Iterator[Sample]:
    """All that is to be seen now; with a `turn`, of the histograms only those whose turn it is.

    A histogram is always whole, so that its buckets, sum and count belong together.
    """
    yield from _scalars(requests, engine)
    yield Sample("inferx:traces_dropped_total", traces_dropped)
    for number, (name, histogram) in enumerate(_histograms(requests, engine.stats)):
        if turn is None or number % HISTOGRAM_TURNS == turn % HISTOGRAM_TURNS:
            yield from _histogram(name, histogram)


def _scalars(requests: RequestStats, engine: Engine) -> Iterator[Sample]:
    """Counters first: who sees a gauge sees what had been counted by then."""
    stats = engine.stats
    num_blocks = stats.free_blocks + stats.cached_blocks + stats.used_blocks
    yield Sample("inferx:prompt_tokens_total", requests.prompt_tokens)
    yield Sample("inferx:generation_tokens_total", requests.output_tokens)
    yield Sample("inferx:prefix_cache_queries_total", stats.prefix_cache_queries)
    yield Sample("inferx:prefix_cache_hits_total", stats.prefix_cache_hits)
    for reason, count in (("stop", requests.stop), ("length", requests.length)):
        yield Sample("inferx:request_success_total", count, ("finished_reason", reason))
    for reason, count in (("invalid", requests.invalid), ("unavailable", requests.unavailable)):
        yield Sample("inferx:request_rejections_total", count, ("reason", reason))
    yield Sample("inferx:request_cancellations_total", requests.cancelled)
    yield Sample("inferx:request_failures_total", requests.failed)
    yield Sample("inferx:num_preemptions_total", stats.preemptions)
    yield Sample("inferx:engine_steps_total", stats.steps)
    yield from _sparse(stats.sparse)
    yield Sample("inferx:engine_restarts_total", engine.num_restarts)
    yield Sample("inferx:num_requests_running", stats.running)
    yield Sample("inferx:num_requests_waiting", stats.waiting)
    yield Sample("inferx:batch_size", stats.batch_size)
    yield Sample("inferx:kv_cache_usage_perc", stats.used_blocks / max(1, num_blocks))
    yield Sample("inferx:kv_pages_free", stats.free_blocks)
    yield Sample("inferx:kv_pages_cached", stats.cached_blocks)
    yield Sample("inferx:kv_pages_used", stats.used_blocks)
    yield Sample("inferx:engine_up", float(engine.is_up))
    yield Sample("inferx:engine_memory_resident_bytes", stats.memory_resident)
    yield Sample("inferx:engine_memory_peak_bytes", stats.memory_peak)


def _sparse(stats: SparseStats) -> Iterator[Sample]:
    yield Sample("inferx:sparse_steps_total", stats.steps)
    yield Sample("inferx:sparse_choices_total", stats.choices)
    for reason, count in (("drift", stats.drifts), ("broken", stats.broken)):
        yield Sample("inferx:sparse_drifts_total", count, ("reason", reason))
    yield Sample("inferx:sparse_predicted_seconds_total", stats.predicted_seconds)
    yield Sample("inferx:sparse_measured_seconds_total", stats.measured_seconds)
    yield Sample("inferx:sparse_regret_seconds_total", stats.regret_seconds)
    yield Sample("inferx:sparse_union_density", stats.union_density)
    yield Sample("inferx:sparse_masked_energy", stats.masked_energy)


def _histograms(requests: RequestStats, stats: EngineStats) -> Iterator[tuple[str, Histogram]]:
    """In the order of HISTOGRAMS."""
    found = (
        requests.ttft,
        requests.inter_token,
        requests.queue,
        requests.prefill,
        requests.decode,
        requests.e2e,
        requests.prompt_length,
        requests.output_length,
        stats.step_time,
    )
    return zip(HISTOGRAMS, found, strict=True)


def _histogram(name: str, histogram: Histogram) -> Iterator[Sample]:
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
        yield Sample(f"{name}_bucket", count, ("le", bound))
    yield Sample(f"{name}_sum", histogram.sum)
    yield Sample(f"{name}_count", sum(histogram.counts))
