"""What is counted of requests: one writer a counter, so that counting takes no lock."""

from __future__ import annotations

from collections.abc import Iterable

from inferx.observe.histogram import Histogram

# Seconds
TTFT_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)
PHASE_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
E2E_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Tokens
LENGTH_BOUNDS = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768)

_BOUNDS = {
    "ttft": TTFT_BOUNDS,
    "inter_token": INTER_TOKEN_BOUNDS,
    "queue": PHASE_BOUNDS,
    "prefill": PHASE_BOUNDS,
    "decode": E2E_BOUNDS,
    "e2e": E2E_BOUNDS,
    "prompt_length": LENGTH_BOUNDS,
    "output_length": LENGTH_BOUNDS,
}
_COUNTER_OF_STATUS = {
    "INVALID_ARG": "invalid",
    "UNAVAILABLE": "unavailable",
    "CANCELLED": "cancelled",
    "INTERNAL": "failed",
}
_COUNTERS = ("stop", "length", *_COUNTER_OF_STATUS.values(), "prompt_tokens", "output_tokens")


class RequestStats:
    """Of the requests that one thread has answered. README's table says what each is."""

    __slots__ = (*_BOUNDS, *_COUNTERS)

    ttft: Histogram
    inter_token: Histogram
    queue: Histogram
    prefill: Histogram
    decode: Histogram
    e2e: Histogram
    prompt_length: Histogram  # tokens
    output_length: Histogram  # tokens of all choices
    stop: int  # requests that ended, by how
    length: int
    invalid: int
    unavailable: int
    cancelled: int
    failed: int
    prompt_tokens: int  # of answered requests
    output_tokens: int

    def __init__(self) -> None:
        for name, bounds in _BOUNDS.items():
            setattr(self, name, Histogram(bounds))
        for name in _COUNTERS:
            setattr(self, name, 0)

    def succeeded(self, *, cut: bool) -> None:
        """`cut`: a choice ended because of its length."""
        if cut:
            self.length += 1
        else:
            self.stop += 1

    def errored(self, status: str) -> None:
        """`status` is that of the error which ended the request."""
        name = _COUNTER_OF_STATUS[status]
        setattr(self, name, getattr(self, name) + 1)

    @classmethod
    def total(cls, parts: Iterable[RequestStats]) -> RequestStats:
        whole = cls()
        for part in parts:
            for name in _BOUNDS:
                getattr(whole, name).add(getattr(part, name))
            for name in _COUNTERS:
                setattr(whole, name, getattr(whole, name) + getattr(part, name))
        return whole
