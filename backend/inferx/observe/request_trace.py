"""What a trace says of a request, as plain data: by whom it is wanted, and what happened."""

from __future__ import annotations

import re
from typing import NamedTuple

from inferx.engine.sampling import SamplingParams

# https://www.w3.org/TR/trace-context/#traceparent-header; a version later than 00 may say more
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_SAMPLED = 1


class TraceParent(NamedTuple):
    """The caller's span."""

    trace_id: int
    span_id: int
    sampled: bool

    @classmethod
    def parse(cls, header: str) -> TraceParent | None:
        """None for what is none: a broken header starts a trace of its own."""
        found = _TRACEPARENT.fullmatch(header)
        if found is None:
            return None
        trace_id, span_id, flags = (int(part, 16) for part in found.groups())
        return cls(trace_id, span_id, bool(flags & _SAMPLED))


class Phases(NamedTuple):
    """Where a request's time went. Unix nanoseconds."""

    queued: int
    prefilled: int  # its prefill began
    first_token: int
    last_token: int


class RequestTrace(NamedTuple):
    """A request that has ended. Times are Unix nanoseconds."""

    parent: TraceParent | None
    model: str
    request_id: str
    begin: int
    end: int
    first_chunk: int | None  # of a stream
    phases: Phases | None  # None: it was not computed
    sampling: SamplingParams | None  # None, as the rest: it could not be read
    stream: bool
    input_tokens: int
    cached_tokens: int  # of the input
    output_tokens: int  # of all choices
    finish_reasons: list[str | None]  # of each choice; None: an error ended it
    error: str | None  # a Triton status name
    prompt: str | None  # None: content is not to be told
    texts: list[str]  # of each choice
