"""The loads of a run: streams in flight, or requests that arrive at given moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferx_client.bench.arrivals import poisson
from inferx_client.bench.errors import BenchError
from inferx_client.bench.measure import Arrival
from inferx_client.bench.prompts import Request, RequestSource, Words
from inferx_client.bench.traces import Recorded

_WARM_UP_SHARE = 0.05  # of the arrivals, if nothing else is said
_REQUESTS_PER_STREAM = 8
_FEWEST_REQUESTS = 32
MOST_IN_FLIGHT = 100_000

SourceOf = Callable[[int], RequestSource]  # by a seed


@dataclass(frozen=True)
class ClosedLoad:
    """`streams` in flight; `count` requests or those of `seconds` after `warm_up` requests."""

    streams: int
    source: RequestSource
    warm_up: int
    count: int | None
    seconds: float | None


@dataclass(frozen=True)
class OpenLoad:
    """`rate`: requests a second, for the report; the first `warm_up` are not counted."""

    kind: str
    rate: float
    arrivals: Sequence[Arrival]
    warm_up: int


def concurrency_sweep(
    levels: Sequence[int],
    source: SourceOf,
    *,
    count: int | None,
    seconds: float | None,
    warm_up: int | None,
) -> list[ClosedLoad]:
    """Every level gets requests of its own, so that none finds another's prefixes cached.

    Raises BenchError for a level below 1 or above MOST_IN_FLIGHT.
    """
    if any(level < 1 for level in levels):
        raise BenchError(f"concurrency {min(levels)}: at least one request is in flight")
    if any(level > MOST_IN_FLIGHT for level in levels):
        raise BenchError(
            f"concurrency {max(levels)}: at most {MOST_IN_FLIGHT} requests are in flight"
        )
    return [
        ClosedLoad(
            level,
            source(place),
            level if warm_up is None else warm_up,
            (count or max(_FEWEST_REQUESTS, _REQUESTS_PER_STREAM * level))
            if seconds is None
            else count,
            seconds,
        )
        for place, level in enumerate(levels)
    ]


def poisson_sweep(
    rates: Sequence[float],
    source: SourceOf,
    *,
    kind: str,
    seconds: float,
    count: int | None,
    warm_up: int | None,
    seed: int,
) -> list[OpenLoad]:
    """`count` cuts a rate's arrivals off. Raises BenchError for a rate that is not positive."""
    loads = []
    for place, rate in enumerate(rates):
        requests = source(place)
        moments = poisson(rate, seconds, seed + place)[:count]
        arrivals = [Arrival(at, requests(index)) for index, at in enumerate(moments)]
        loads.append(OpenLoad(kind, rate, arrivals, _warmed(warm_up, len(arrivals))))
    return loads


def replay(
    trace: Sequence[Recorded],
    words: Words,
    *,
    speed: float,
    seconds: float | None,
    count: int | None,
    max_input_tokens: int | None,
    max_output_tokens: int | None,
    warm_up: int | None,
    seed: int,
) -> OpenLoad:
    """A trace `speed` times as fast, cut off after `seconds` and `count`; longer requests are cut.

    Raises BenchError for a speed that is not positive.
    """
    if not speed > 0:
        raise BenchError(f"a speed of {speed:g}: it has to be above 0")
    arrivals = []
    for index, one in enumerate(trace[:count]):
        at = one.at / speed
        if seconds is not None and at > seconds:
            break
        tokens = min(one.input_tokens, max_input_tokens or one.input_tokens)
        tokens = max(tokens, words.overhead + 1)
        prompt = words.of_blocks(tokens, one.blocks, (seed, index))
        outputs = min(one.output_tokens, max_output_tokens or one.output_tokens)
        arrivals.append(Arrival(at, Request(prompt, outputs)))
    lasts = arrivals[-1].at
    rate = len(arrivals) / lasts if lasts > 0 else float(len(arrivals))
    return OpenLoad("trace", rate, arrivals, _warmed(warm_up, len(arrivals)))


def _warmed(warm_up: int | None, arrivals: int) -> int:
    return int(arrivals * _WARM_UP_SHARE) if warm_up is None else warm_up
