"""What the channel counts, and the Prometheus samples that come of it."""

from __future__ import annotations

from inferx.engine.messages import EngineStats
from inferx.triton.metrics import Sample, samples
from inferx.triton.stats import ChannelStats, Histogram


class Engine:
    stats = EngineStats(
        running=2,
        waiting=1,
        free_blocks=5,
        cached_blocks=3,
        used_blocks=4,
        steps=9,
        prefix_cache_queries=64,
        prefix_cache_hits=16,
        preemptions=1,
    )
    num_restarts = 1
    is_up = True


def test_an_observation_counts_up_to_its_bound_and_by_its_weight() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)
    histogram.observe(1.5, 3)
    histogram.observe(9.0)
    assert histogram.counts == [1, 3, 1]
    assert histogram.sum == 14.5


def test_the_shards_counts_add_up() -> None:
    parts = [ChannelStats(), ChannelStats()]
    for part, status in zip(parts, (None, "CANCELLED"), strict=True):
        part.ended(status)
        part.output_tokens += 5
        part.ttft.observe(0.02)
    total = ChannelStats.total(parts)
    assert (total.outcomes["success"], total.outcomes["cancelled"]) == (1, 1)
    assert total.output_tokens == 10
    assert sum(total.ttft.counts) == 2
    assert total.ttft.sum == 0.04


def test_samples_are_few_and_buckets_cumulative() -> None:
    channel = ChannelStats()
    for seconds in (0.02, 0.02, 0.3, 999.0):
        channel.ttft.observe(seconds)
    channel.ended("INVALID_ARG")
    found = list(samples(channel, Engine()))
    assert len(found) < 80
    assert Sample("inferx_requests_total", 1, ("outcome", "invalid")) in found
    assert Sample("inferx_engine_up", 1.0) in found
    assert Sample("inferx_kv_pages_free", 5) in found
    buckets = {
        sample.label[1]: sample.value
        for sample in found
        if sample.family == "inferx_time_to_first_token_seconds_bucket"
    }
    assert (buckets["0.01"], buckets["0.025"], buckets["0.5"], buckets["+Inf"]) == (0, 2, 3, 4)
    assert list(buckets.values()) == sorted(buckets.values())
    assert Sample("inferx_time_to_first_token_seconds_count", 4) in found
    assert {sample.label[0] for sample in found if sample.label} == {"outcome", "le"}
