"""Figures of hand-made timings, and when arrivals come."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator

import pytest
from inferx_client.bench import BenchError
from inferx_client.bench.arrivals import poisson
from inferx_client.bench.measure import Arrival, closed_loop, open_loop
from inferx_client.bench.prompts import Request
from inferx_client.bench.statistics import Distribution, Figures, Measured, parse_limits
from inferx_client.bench.target import Part, RequestFailed
from inferx_client.bench.timing import Timing


def timing(started: float, *parts: tuple[float, int], **more: object) -> Timing:
    """`parts`: when each response arrived, and its tokens."""
    moments, tokens = [at for at, _ in parts], [count for _, count in parts]
    ended = moments[-1] if moments else started
    return Timing(started, None, moments, tokens, ended=ended, **more)  # type: ignore[arg-type]


def measured(*timings: Timing, begin: float = 0.0, end: float = 10.0) -> Measured:
    return Measured(timings, timings, begin, end)


def test_percentiles_are_nearest_ranks() -> None:
    assert Distribution.of(range(100, 0, -1)) == Distribution(100, 50.5, 50, 90, 95, 99, 100)
    assert Distribution.of([7.0]) == Distribution(1, 7, 7, 7, 7, 7, 7)
    assert Distribution.of([]) is None


def test_every_latency_has_its_definition() -> None:
    """Sent at 1; a token at 2, none at 3, four at 4, one at 6."""
    figures = Figures.of(measured(timing(1, (2, 1), (3, 0), (4, 4), (6, 1), input_tokens=7)))
    assert figures.ttft is not None
    assert figures.ttft.mean == 1
    assert figures.latency is not None
    assert figures.latency.mean == 5
    assert figures.tpot is not None
    assert figures.tpot.mean == (6 - 2) / 5
    assert figures.inter_token == Distribution(5, 0.8, 0.5, 2, 2, 2, 2)  # 4 × (4 - 2) / 4, 6 - 4
    assert (figures.input_tokens, figures.output_tokens) == (7, 6)


def test_a_first_response_without_a_token_is_not_the_first_token() -> None:
    figures = Figures.of(measured(timing(0, (1, 0), (3, 1))))
    assert figures.ttft is not None
    assert figures.ttft.mean == 3


def test_one_token_has_no_time_per_output_token() -> None:
    figures = Figures.of(measured(timing(0, (1, 1))))
    assert figures.tpot is None
    assert figures.inter_token is None


def test_tokens_count_when_they_arrive_and_requests_by_the_share_of_their_life() -> None:
    half = timing(0, (5, 4), (15, 4), (20, 2))
    whole = timing(11, (12, 1), (19, 1))
    figures = Figures.of(Measured([half, whole], [whole], 10, 20))
    assert figures.requests_per_second == pytest.approx((0.5 + 1) / 10)
    assert figures.output_tokens_per_second == pytest.approx((4 + 2 + 2) / 10)
    assert figures.requests == 1


def test_failed_requests_are_counted_by_kind_and_not_timed() -> None:
    failed = [timing(0, error="UNAVAILABLE"), timing(0, error="UNAVAILABLE")]
    other = timing(0, error="HTTP 429")
    figures = Figures.of(measured(timing(0, (1, 1)), *failed, other))
    assert figures.requests == 4
    assert figures.errors == {"UNAVAILABLE": 2, "HTTP 429": 1}
    assert figures.latency is not None
    assert figures.latency.count == 1


def test_goodput_are_the_requests_that_keep_every_limit() -> None:
    requests = [
        timing(0, (0.2, 1), (0.3, 2)),  # exactly at both limits
        timing(0, (0.3, 1), (0.4, 2)),  # the first token is late
        timing(0, (0.2, 1), (0.4, 2)),  # the others are slow
        timing(0, (0.1, 1)),
        timing(0, error="CANCELLED"),
    ]
    good = Figures.of(measured(*requests), parse_limits(["ttft:200 tpot:50"])).goodput
    assert good is not None
    assert good.limits == {"ttft": 0.2, "tpot": 0.05}
    assert good.share == pytest.approx(2 / 5, abs=1e-9)
    assert good.requests_per_second == 0.2


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-5", "itl:20", "5"])
def test_a_limit_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="goodput"):
        parse_limits([text])


def test_the_p99_of_each_window_and_their_spread() -> None:
    first = [timing(at, (at + 1, 1)) for at in (0, 3, 9.9)]
    second = [timing(10, (13, 1)), timing(19, (20, 1))]
    left_over = timing(21, (30, 1))  # in a part of a window
    steady = Figures.of(measured(*first, *second, left_over, end=25)).stability
    assert steady is not None
    assert list(steady.p99) == [1, 3]
    assert (steady.mean, steady.min, steady.max) == (2, 1, 3)
    assert (steady.deviation, steady.variation) == (1, 0.5)


def test_tokens_that_are_counted_at_the_end_are_shared_among_the_responses_with_text() -> None:
    one = timing(0, (1, 0), (2, 1), (3, 1), (4, 1), (5, 0))
    one.spread(8)
    assert one.tokens == [0, 3, 3, 2, 0]


def test_poisson_arrivals_have_the_rate_and_the_spread_of_their_law() -> None:
    moments = poisson(50, 400, seed=1)
    gaps = [b - a for a, b in itertools.pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert len(moments) == pytest.approx(20_000, abs=4 * math.sqrt(20_000))
    assert mean == pytest.approx(1 / 50, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.05)  # exponential: the two are equal
    longer = sum(gap > mean for gap in gaps) / len(gaps)
    assert longer == pytest.approx(math.exp(-1), abs=0.02)
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert moments[-1] < 400


def test_the_same_seed_gives_the_same_arrivals() -> None:
    assert poisson(5, 20, seed=3) == poisson(5, 20, seed=3) != poisson(5, 20, seed=4)
    with pytest.raises(BenchError, match="above 0"):
        poisson(0, 10, seed=0)


class Instant:
    """A target that answers every request at once with two tokens, or fails every third."""

    def __init__(self, failing: bool = False) -> None:
        self.seen: list[str] = []
        self.in_flight = self.most_in_flight = 0
        self._failing = failing

    async def __aenter__(self) -> Instant:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def parts(self, request: Request) -> AsyncGenerator[Part, None]:
        self.seen.append(request.prompt)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        yield Part(1, 3)
        if self._failing and len(self.seen) % 3 == 0:
            self.in_flight -= 1
            raise RequestFailed("UNAVAILABLE")
        yield Part(1, 3)
        self.in_flight -= 1


def numbered(index: int) -> Request:
    return Request(str(index), 2)


def test_a_closed_loop_holds_its_streams_and_counts_after_the_warm_up() -> None:
    target = Instant()
    result = asyncio.run(closed_loop(target, numbered, concurrency=4, warm_up=5, count=20))
    assert target.most_in_flight == 4
    assert len(result.counted) == 20
    assert len(result.timings) == len(target.seen) >= 25
    assert sorted(map(int, target.seen)) == list(range(len(target.seen)))
    assert all(result.begin <= one.ended <= result.end for one in result.counted)


def test_failed_requests_of_a_closed_loop_are_among_the_counted() -> None:
    target = Instant(failing=True)
    result = asyncio.run(closed_loop(target, numbered, concurrency=1, warm_up=0, count=6))
    assert Figures.of(result).errors == {"UNAVAILABLE": 2}


def test_an_open_loop_counts_the_requests_after_the_warm_up_and_waits_for_all() -> None:
    target = Instant()
    arrivals = [Arrival(index * 0.002, numbered(index)) for index in range(10)]
    result = asyncio.run(open_loop(target, arrivals, warm_up=4))
    assert (len(result.timings), len(result.counted)) == (10, 6)
    assert Figures.of(result).output_tokens == 12
    with pytest.raises(BenchError, match="longer run"):
        asyncio.run(open_loop(target, arrivals, warm_up=10))
