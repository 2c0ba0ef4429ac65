"""A request's spans, by OpenTelemetry's semantic conventions for generative AI (`gen_ai.*`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from inferx.engine.sampling import SamplingParams
from inferx.observe.request_trace import RequestTrace, TraceParent

_OPERATION = "text_completion"
_SECOND = 1e9  # nanoseconds


class SpanBuilder:
    """For one thread. The requests that it is given are those that were sampled."""

    def __init__(self) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "inferx")
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": name}),
            shutdown_on_exit=False,
        )
        self._ended = _Ended()
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("inferx")

    def build(self, trace: RequestTrace) -> list[ReadableSpan]:
        """The request's span last, behind its children."""
        span = self._tracer.start_span(
            f"{_OPERATION} {trace.model}",
            context=None if trace.parent is None else _context(trace.parent),
            kind=SpanKind.SERVER,
            attributes=dict(_attributes(trace)),
            start_time=trace.begin,
        )
        assert isinstance(span, Span)
        if trace.phases is not None:
            queued, prefilled, first_token, last_token = trace.phases
            self._child(span, "queue", queued, prefilled)
            self._child(span, "prefill", prefilled, first_token)
            self._child(span, "decode", first_token, last_token)
        if trace.error is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(trace.end)
        return self._ended.take()

    def _child(self, parent: Span, name: str, begin: int, end: int) -> None:
        context = set_span_in_context(parent)
        self._tracer.start_span(name, context=context, start_time=begin).end(end)


class _Ended(SpanProcessor):
    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        taken, self._spans = self._spans, []
        return taken


def _context(parent: TraceParent) -> Any:
    flags = TraceFlags(TraceFlags.SAMPLED)
    context = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(context))


def _attributes(trace: RequestTrace) -> Iterator[tuple[str, Any]]:
    yield "gen_ai.operation.name", _OPERATION
    yield "gen_ai.provider.name", "inferx"
    yield "gen_ai.request.model", trace.model
    yield "gen_ai.response.model", trace.model
    yield "gen_ai.request.stream", trace.stream
    if trace.request_id:
        yield "gen_ai.response.id", trace.request_id
    if trace.sampling is not None:
        yield from _parameters(trace.sampling)
    yield "gen_ai.usage.input_tokens", trace.input_tokens
    yield "gen_ai.usage.cache_read.input_tokens", trace.cached_tokens
    yield "gen_ai.usage.output_tokens", trace.output_tokens
    if reasons := [reason for reason in trace.finish_reasons if reason is not None]:
        yield "gen_ai.response.finish_reasons", reasons
    if trace.first_chunk is not None:
        seconds = (trace.first_chunk - trace.begin) / _SECOND
        yield "gen_ai.response.time_to_first_chunk", seconds
    if trace.error is not None:
        yield "error.type", trace.error
    if trace.prompt is not None:
        yield from _content(trace, trace.prompt)


def _parameters(params: SamplingParams) -> Iterator[tuple[str, Any]]:
    if params.max_tokens is not None:
        yield "gen_ai.request.max_tokens", params.max_tokens
    yield "gen_ai.request.temperature", params.temperature
    yield "gen_ai.request.top_p", params.top_p
    yield "gen_ai.request.top_k", params.top_k
    yield "gen_ai.request.presence_penalty", params.presence_penalty
    yield "gen_ai.request.frequency_penalty", params.frequency_penalty
    yield "gen_ai.request.choice.count", params.n
    if params.seed is not None:
        yield "gen_ai.request.seed", params.seed


def _content(trace: RequestTrace, prompt: str) -> Iterator[tuple[str, Any]]:
    yield "gen_ai.input.messages", _messages([{"role": "user", "parts": _parts(prompt)}])
    answers = [
        {"role": "assistant", "parts": _parts(text), "finish_reason": reason or "error"}
        for text, reason in zip(trace.texts, trace.finish_reasons, strict=True)
    ]
    yield "gen_ai.output.messages", _messages(answers)
    if trace.sampling is not None and trace.sampling.stop:
        yield "gen_ai.request.stop_sequences", list(trace.sampling.stop)


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "content": text}]


def _messages(messages: list[dict[str, Any]]) -> str:
    return msgspec.json.encode(messages).decode()
