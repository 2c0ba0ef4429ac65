"""Figures of a measured load. Percentiles are nearest ranks, in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from inferx_client.bench.errors import BenchError
from inferx_client.bench.timing import Timing

PERCENTILES = (50, 90, 95, 99)
CURVE_POINTS = 101  # of a distribution, for its picture
WINDOW_SECONDS = 10.0

Limit = Literal["ttft", "tpot", "e2e"]
LIMITS: tuple[Limit, ...] = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Distribution:
    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution | None:
        """None for no values."""
        ordered = np.sort(np.fromiter(values, dtype=np.float64))
        if not len(ordered):
            return None
        p50, p90, p95, p99 = (nearest_rank(ordered, percent) for percent in PERCENTILES)
        return cls(len(ordered), float(ordered.mean()), p50, p90, p95, p99, max=float(ordered[-1]))


def nearest_rank(ordered: np.ndarray, percent: float) -> float:
    """The smallest of the `ordered` values that `percent` of them do not exceed."""
    return float(ordered[max(0, -int(-len(ordered) * percent // 100) - 1)])


@dataclass(frozen=True)
class Measured:
    """`timings` of all requests that touched the counted time, from `begin` to `end`.

    `counted` are those that the figures are of: those that ended in that time in a closed loop,
    those that were due in it in an open one. `lag`: by how much the client itself was late.
    """

    timings: Sequence[Timing]
    counted: Sequence[Timing]
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Goodput:
    """Requests that kept every limit. `limits`: seconds by name."""

    limits: Mapping[Limit, float]
    share: float  # of all counted requests, failed ones too
    requests_per_second: float


@dataclass(frozen=True)
class Stability:
    """The p99 of the latency in each window of WINDOW_SECONDS, and how far they differ."""

    seconds: float
    p99: Sequence[float]
    mean: float
    min: float
    max: float
    deviation: float  # standard deviation of the windows' p99
    variation: float  # that, as a share of their mean


@dataclass(frozen=True)
class Figures:
    requests: int  # counted, failed ones too
    errors: Mapping[str, int]  # by kind
    seconds: float
    input_tokens: int
    output_tokens: int
    requests_per_second: float
    output_tokens_per_second: float
    ttft: Distribution | None
    inter_token: Distribution | None
    tpot: Distribution | None
    latency: Distribution | None
    goodput: Goodput | None
    stability: Stability | None
    lag: Distribution | None
    curves: Mapping[str, Sequence[float]]  # CURVE_POINTS quantiles of ttft and latency

    @classmethod
    def of(cls, measured: Measured, limits: Mapping[Limit, float] | None = None) -> Figures:
        good = [one for one in measured.counted if one.error is None]
        first = [value for one in good if (value := one.time_to_first_token) is not None]
        latency = [one.latency for one in good]
        per_token = [value for one in good if (value := one.time_per_output_token) is not None]
        return cls(
            requests=len(measured.counted),
            errors=dict(Counter(one.error for one in measured.counted if one.error)),
            seconds=measured.seconds,
            input_tokens=sum(one.input_tokens or 0 for one in measured.counted),
            output_tokens=sum(one.output_tokens for one in measured.counted),
            requests_per_second=_requests_per_second(measured),
            output_tokens_per_second=_tokens_per_second(measured),
            ttft=Distribution.of(first),
            inter_token=_inter_token(good),
            tpot=Distribution.of(per_token),
            latency=Distribution.of(latency),
            goodput=goodput(measured, limits) if limits else None,
            stability=stability(good, measured),
            lag=Distribution.of(
                one.started - one.scheduled for one in good if one.scheduled is not None
            ),
            curves={"ttft": _curve(first), "latency": _curve(latency)},
        )


def goodput(measured: Measured, limits: Mapping[Limit, float]) -> Goodput:
    kept = sum(one.error is None and _keeps(one, limits) for one in measured.counted)
    share = kept / len(measured.counted) if measured.counted else 0.0
    return Goodput(limits, share, kept / measured.seconds)


def _keeps(timing: Timing, limits: Mapping[Limit, float]) -> bool:
    """A request of one token has no time per output token, and keeps any."""
    values = {
        "ttft": timing.time_to_first_token,
        "tpot": timing.time_per_output_token or 0.0,
        "e2e": timing.latency,
    }
    return all((value := values[name]) is not None and value <= limits[name] for name in limits)


def parse_limits(texts: Iterable[str]) -> dict[Limit, float]:
    """`ttft:200 tpot:50` (milliseconds) as seconds by name. Raises BenchError."""
    found: dict[Limit, float] = {}
    for text in (part for given in texts for part in given.split()):
        name, _, value = text.partition(":")
        limit = next((known for known in LIMITS if known == name), None)
        try:
            milliseconds = float(value)
        except ValueError:
            milliseconds = 0.0
        if limit is None or not milliseconds > 0:
            raise BenchError(
                f"goodput {text!r}: a limit is {', '.join(LIMITS)}, a colon and milliseconds"
            )
        found[limit] = milliseconds / 1e3
    return found


def stability(timings: Iterable[Timing], measured: Measured) -> Stability | None:
    """Windows by the moment a request was sent; a last part of a window counts only if it is the
    only one. None where nothing was answered.
    """
    whole = int(measured.seconds // WINDOW_SECONDS)
    windows: dict[int, list[float]] = {}
    for one in timings:
        index = int((one.started - measured.begin) // WINDOW_SECONDS)
        if 0 <= index < max(1, whole):
            windows.setdefault(index, []).append(one.latency)
    if not windows:
        return None
    p99 = np.array([nearest_rank(np.sort(windows[index]), 99) for index in sorted(windows)])
    return Stability(
        seconds=WINDOW_SECONDS,
        p99=p99.tolist(),
        mean=float(p99.mean()),
        min=float(p99.min()),
        max=float(p99.max()),
        deviation=float(p99.std()),
        variation=float(p99.std() / p99.mean()),
    )


def _requests_per_second(measured: Measured) -> float:
    """Each request counts by the share of its life that lies in the counted time, so that requests
    which run in step do not count by chance once more or less.
    """
    total = 0.0
    for one in measured.timings:
        if one.error is None and one.ended > one.started:
            inside = min(one.ended, measured.end) - max(one.started, measured.begin)
            total += max(0.0, inside) / (one.ended - one.started)
    return total / measured.seconds


def _tokens_per_second(measured: Measured) -> float:
    tokens = sum(
        count
        for one in measured.timings
        for moment, count in zip(one.responses, one.tokens, strict=True)
        if measured.begin < moment <= measured.end
    )
    return tokens / measured.seconds


def _inter_token(timings: Iterable[Timing]) -> Distribution | None:
    """Every token counts once: a response of four has four tokens at a quarter of its gap."""
    pairs = [pair for one in timings for pair in one.gaps()]
    if not pairs:
        return None
    gaps, tokens = np.array(pairs).T
    return Distribution.of(np.repeat(gaps, tokens.astype(np.int64)))


def _curve(values: Sequence[float]) -> list[float]:
    if not values:
        return []
    ordered = np.sort(values)
    return [nearest_rank(ordered, percent) for percent in range(CURVE_POINTS)]
