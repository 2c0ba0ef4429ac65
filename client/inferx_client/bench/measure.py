"""Sends requests and takes the times: a closed loop of streams, or an open one of arrivals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from inferx_client.bench.errors import BenchError
from inferx_client.bench.prompts import Request, RequestSource
from inferx_client.bench.statistics import Measured
from inferx_client.bench.target import RequestFailed, Target
from inferx_client.bench.timing import Timing

PAUSE_AFTER_ERROR = 0.05  # seconds: a server that refuses is not asked at the speed of a loop

Observe = Callable[[Timing], None]  # sees every request that ended


@dataclass(frozen=True)
class Arrival:
    """`at`: seconds after the run's begin."""

    at: float
    request: Request


def nobody(timing: Timing) -> None:
    """Observes nothing."""


async def token_count(target: Target, prompt: str) -> int:
    """How many tokens the server counts in a prompt. Raises BenchError where it does not answer."""
    timing = await follow(target, Request(prompt, 1), keep_reason=True)
    if timing.input_tokens is None:
        raise BenchError(
            "the server does not say how many tokens a prompt has: give --tokenizer MODEL"
        )
    return timing.input_tokens


async def follow(
    target: Target,
    request: Request,
    scheduled: float | None = None,
    *,
    keep_reason: bool = False,
) -> Timing:
    """One request from sending to its end. A failure is an entry of its timing, or BenchError
    with the server's reason if `keep_reason` says so.
    """
    timing = Timing(time.perf_counter(), scheduled)
    total = None
    try:
        async with aclosing(target.parts(request)) as parts:
            async for part in parts:
                timing.responses.append(time.perf_counter())
                timing.tokens.append(part.tokens)
                timing.input_tokens = part.input_tokens or timing.input_tokens
                total = part.total_tokens or total
    except RequestFailed as failure:
        if keep_reason:
            raise BenchError(f"the server refuses a request: {failure.kind}: {failure}") from None
        timing.error = failure.kind
    if total is not None:
        timing.spread(total)
    timing.ended = timing.responses[-1] if timing.responses else time.perf_counter()
    return timing


@dataclass
class _Loop:
    """The state that the streams of a closed loop share."""

    warm_up: int
    count: int | None
    seconds: float | None
    timings: list[Timing] = field(default_factory=list)
    sent: int = 0
    ended: int = 0
    begin: float | None = None
    end: float | None = None

    def add(self, timing: Timing) -> None:
        self.timings.append(timing)
        self.ended += 1
        now = timing.ended
        if self.begin is None:
            if self.ended == self.warm_up:
                self.begin = now
        elif self.end is None:
            enough = self.count is not None and self.ended == self.warm_up + self.count
            late = self.seconds is not None and now - self.begin >= self.seconds
            if enough or late:
                self.end = now


async def closed_loop(
    target: Target,
    source: RequestSource,
    *,
    concurrency: int,
    warm_up: int,
    count: int | None = None,
    seconds: float | None = None,
    observe: Observe = nobody,
) -> Measured:
    """`concurrency` streams, each sending its next request when one has ended.

    The first `warm_up` requests that end are not counted; then `count` are, or those of `seconds`.
    Each stream finishes what it has begun after that, so that the load is the same to the last
    counted request.
    """
    loop = _Loop(warm_up, count, seconds)
    if warm_up == 0:
        loop.begin = time.perf_counter()

    async def stream() -> None:
        while loop.end is None:
            loop.sent += 1
            timing = await follow(target, source(loop.sent - 1))
            loop.add(timing)
            observe(timing)
            if timing.error:
                await asyncio.sleep(PAUSE_AFTER_ERROR)

    await asyncio.gather(*(stream() for _ in range(concurrency)))
    assert loop.begin is not None
    assert loop.end is not None
    # In the order in which they ended, which is that of the list.
    counted = loop.timings[warm_up:]
    if count is not None:
        counted = counted[:count]
    counted = [timing for timing in counted if timing.ended <= loop.end]
    return Measured(loop.timings, counted, loop.begin, loop.end)


async def open_loop(
    target: Target,
    arrivals: Sequence[Arrival],
    *,
    warm_up: int,
    observe: Observe = nobody,
) -> Measured:
    """Sends each request at its moment, however many are in flight, and waits for all.

    The first `warm_up` are not counted. The counted time begins with the first that is, and ends
    with the last answer. Raises BenchError where none would be counted.
    """
    if len(arrivals) <= warm_up:
        raise BenchError(
            f"{len(arrivals)} requests arrive and the first {warm_up} are warm-up: "
            "a longer run or a higher rate is needed"
        )
    start = time.perf_counter()
    timings: list[Timing] = []

    async def send(arrival: Arrival) -> None:
        timing = await follow(target, arrival.request, start + arrival.at)
        timings.append(timing)
        observe(timing)

    tasks = []
    for arrival in arrivals:
        await asyncio.sleep(max(0.0, start + arrival.at - time.perf_counter()))
        tasks.append(asyncio.create_task(send(arrival)))
    await asyncio.gather(*tasks)
    begin = start + arrivals[warm_up].at
    counted = [one for one in timings if one.scheduled is not None and one.scheduled >= begin]
    return Measured(timings, counted, begin, max(one.ended for one in timings))
