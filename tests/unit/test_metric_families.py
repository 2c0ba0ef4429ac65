"""What is counted of requests, and the Prometheus samples that come of it."""

from __future__ import annotations

from inferx.engine.messages import STEP_TIME_BOUNDS, EngineStats
from inferx.observe.families import HISTOGRAM_TURNS, HISTOGRAMS, Sample, families, samples
from inferx.observe.histogram import Histogram
from inferx.observe.request_stats import RequestStats


class Engine:
    stats = EngineStats(
        batch_size=2,
        running=2,
        waiting=1,
        free_blocks=5,
        cached_blocks=3,
        used_blocks=4,
        memory_resident=100,
        memory_peak=160,
        steps=9,
        prefix_cache_queries=64,
        prefix_cache_hits=16,
        preemptions=1,
        step_seconds=0.09,
        step_time_counts=(0, 0, 0, 9, *[0] * (len(STEP_TIME_BOUNDS) - 3)),
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
    parts = [RequestStats(), RequestStats()]
    for part in parts:
        part.output_tokens += 5
        part.ttft.observe(0.02)
    parts[0].succeeded(cut=False)
    parts[0].succeeded(cut=True)
    parts[1].succeeded(cut=True)
    for status in ("CANCELLED", "INVALID_ARG", "UNAVAILABLE", "INTERNAL"):
        parts[1].errored(status)
    total = RequestStats.total(parts)
    assert (total.stop, total.length) == (1, 2)
    assert (total.cancelled, total.invalid, total.unavailable, total.failed) == (1, 1, 1, 1)
    assert total.output_tokens == 10
    assert sum(total.ttft.counts) == 2
    assert total.ttft.sum == 0.04


def test_scalars_are_what_requests_and_engine_count() -> None:
    requests = RequestStats()
    requests.errored("INVALID_ARG")
    found = {(s.family, s.label): s.value for s in samples(requests, Engine(), 3)}
    assert found["inferx:request_rejections_total", ("reason", "invalid")] == 1
    assert found["inferx:request_rejections_total", ("reason", "unavailable")] == 0
    assert found["inferx:engine_up", None] == 1.0
    assert found["inferx:traces_dropped_total", None] == 3
    assert found["inferx:kv_cache_usage_perc", None] == 4 / 12
    assert found["inferx:engine_memory_peak_bytes", None] == 160
    assert found["inferx:engine_step_time_seconds_bucket", ("le", "0.01")] == 9
    assert found["inferx:engine_step_time_seconds_bucket", ("le", "0.005")] == 0
    assert found["inferx:engine_step_time_seconds_sum", None] == 0.09


def test_buckets_are_cumulative() -> None:
    requests = RequestStats()
    for seconds in (0.02, 0.02, 0.3, 999.0):
        requests.ttft.observe(seconds)
    found = list(samples(requests, Engine(), 3))
    buckets = {
        sample.label[1]: sample.value
        for sample in found
        if sample.label and sample.family == "inferx:time_to_first_token_seconds_bucket"
    }
    assert (buckets["0.01"], buckets["0.025"], buckets["0.5"], buckets["+Inf"]) == (0, 2, 3, 4)
    assert list(buckets.values()) == sorted(buckets.values())
    assert Sample("inferx:time_to_first_token_seconds_count", 4) in found


def test_the_families_are_those_that_have_samples_and_labels_are_few() -> None:
    found = list(samples(RequestStats(), Engine(), 3))
    assert {sample.family for sample in found} == {name for name, _, _ in families()}
    labels = {sample.label[0] for sample in found if sample.label}
    assert labels == {"finished_reason", "reason", "le"}


def test_a_turn_brings_a_third_of_the_histograms_whole_and_turns_bring_all() -> None:
    everything = set(samples(RequestStats(), Engine(), 3))
    turns = [set(samples(RequestStats(), Engine(), 3, turn)) for turn in range(HISTOGRAM_TURNS)]
    assert set.union(*turns) == everything
    for turn in turns:
        assert len(turn) < 80, "each is a round trip"
        counts = [s for s in turn if s.family.removesuffix("_count") in HISTOGRAMS]
        assert len(counts) == len(HISTOGRAMS) / HISTOGRAM_TURNS
