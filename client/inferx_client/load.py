"""Load generator: a fixed number of requests in flight, and what their streams looked like.

    python -m inferx_client.load --url 127.0.0.1:8001 --model smollm2 --concurrency 16

Times are seconds on the client's clock. A response may carry several tokens; a gap is the time
between two responses of one stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from typing import Any

from inferx_client.client import AsyncClient
from inferx_client.wire import InferenceError

PERCENTILES = (50, 90, 99)


@dataclass
class Stream:
    """One request's course."""

    started: float
    responses: list[float] = field(default_factory=list)  # when each arrived
    output_tokens: int = 0
    error: str | None = None  # a status

    @property
    def time_to_first(self) -> float:
        return self.responses[0] - self.started

    @property
    def latency(self) -> float:
        return self.responses[-1] - self.started

    @property
    def gaps(self) -> Iterator[float]:
        return (b - a for a, b in zip(self.responses, self.responses[1:], strict=False))


@dataclass(frozen=True)
class LoadReport:
    """Percentiles are {"p50": …, "p90": …, "p99": …, "max": …}, in seconds."""

    requests: int
    errors: dict[str, int]  # by status
    seconds: float
    output_tokens: int
    responses: int
    tokens_per_second: float
    time_to_first: dict[str, float]
    gap: dict[str, float]
    latency: dict[str, float]

    @classmethod
    def of(cls, streams: Sequence[Stream], seconds: float) -> LoadReport:
        done = [stream for stream in streams if stream.error is None and stream.responses]
        tokens = sum(stream.output_tokens for stream in streams)
        return cls(
            requests=len(streams),
            errors=dict(Counter(stream.error for stream in streams if stream.error)),
            seconds=seconds,
            output_tokens=tokens,
            responses=sum(len(stream.responses) for stream in streams),
            tokens_per_second=tokens / seconds,
            time_to_first=percentiles(stream.time_to_first for stream in done),
            gap=percentiles(gap for stream in done for gap in stream.gaps),
            latency=percentiles(stream.latency for stream in done),
        )

    def as_json(self) -> str:
        return json.dumps(_rounded(asdict(self)))


async def run_load(
    url: str,
    model: str,
    prompts: Iterable[str | Sequence[int]],
    *,
    concurrency: int,
    options: Mapping[str, Any],
) -> LoadReport:
    """Sends each prompt once, `concurrency` at a time, each as a stream.

    `options` are those of AsyncClient.stream. A failed request is counted and not repeated.
    """
    waiting = iter(prompts)
    streams: list[Stream] = []

    async def worker(client: AsyncClient) -> None:
        for prompt in waiting:
            streams.append(await _follow(client, prompt, options))

    async with AsyncClient(url, model) as client:
        start = time.perf_counter()
        await asyncio.gather(*(worker(client) for _ in range(concurrency)))
        return LoadReport.of(streams, time.perf_counter() - start)


async def _follow(
    client: AsyncClient, prompt: str | Sequence[int], options: Mapping[str, Any]
) -> Stream:
    stream = Stream(time.perf_counter())
    try:
        async for delta in client.stream(prompt, **options):
            stream.responses.append(time.perf_counter())
            stream.output_tokens += delta.num_output_tokens or 0
    except InferenceError as error:
        stream.error = error.status
    return stream


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """The nearest-rank percentiles and the maximum; empty for no values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    found = {f"p{p}": ordered[-(-len(ordered) * p // 100) - 1] for p in PERCENTILES}
    return {**found, "max": ordered[-1]}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return round(value, 5) if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m inferx_client.load", description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8001", help="Triton's gRPC endpoint")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", action="append", help="repeatable; they are taken in turn")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--ignore-eos", action="store_true", help="always max-tokens tokens")
    given = parser.parse_args(arguments)
    prompts = islice(cycle(given.prompt or ["Once upon a time"]), given.requests)
    options = {"max_tokens": given.max_tokens, "ignore_eos": given.ignore_eos, "temperature": 0}
    report = asyncio.run(
        run_load(given.url, given.model, prompts, concurrency=given.concurrency, options=options)
    )
    print(report.as_json())
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
