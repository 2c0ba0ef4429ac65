"""What a model counts: one writer a counter, so that counting takes no lock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

OUTCOMES = ("success", "invalid", "unavailable", "cancelled", "internal")
_OUTCOME_OF_STATUS = {
    "INVALID_ARG": "invalid",
    "UNAVAILABLE": "unavailable",
    "CANCELLED": "cancelled",
    "INTERNAL": "internal",
}
TTFT_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
INTER_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)
E2E_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Histogram:
    """Counts by upper bound, the last without one; `weight` observations at once."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += weight
        self.sum += value * weight

    def add(self, other: Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


class ChannelStats:
    """What one shard has sent. Seconds are from a request's arrival, or between two deltas."""

    __slots__ = ("e2e", "inter_token", "outcomes", "output_tokens", "prompt_tokens", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT_BOUNDS)
        self.inter_token = Histogram(INTER_TOKEN_BOUNDS)
        self.e2e = Histogram(E2E_BOUNDS)
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.prompt_tokens = 0
        self.output_tokens = 0

    def ended(self, status: str | None) -> None:
        """`status` is that of the error, None for a success."""
        self.outcomes[_OUTCOME_OF_STATUS[status] if status else "success"] += 1

    @classmethod
    def total(cls, parts: Iterable[ChannelStats]) -> ChannelStats:
        whole = cls()
        for part in parts:
            whole.ttft.add(part.ttft)
            whole.inter_token.add(part.inter_token)
            whole.e2e.add(part.e2e)
            for outcome, count in part.outcomes.items():
                whole.outcomes[outcome] += count
            whole.prompt_tokens += part.prompt_tokens
            whole.output_tokens += part.output_tokens
        return whole
