"""From a Triton request to its trace: who its caller is, and what happened to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from inferx.config import EngineConfig
from inferx.observe.request_trace import Phases, RequestTrace, TraceParent
from inferx.observe.tracing import Tracer, check_tracing, otlp_exporter
from inferx.triton.outbox import Outbox
from inferx.triton.protocol import GenerateRequest


class RequestTracing:
    """Owns the model's tracer."""

    def __init__(self, model: str, config: EngineConfig, endpoint: str) -> None:
        self._model = model
        self._with_content = config.trace_content
        self._tracer = Tracer(endpoint, config.trace_sample_ratio, otlp_exporter)

    @classmethod
    def start(cls, model: str, config: EngineConfig) -> RequestTracing | None:
        """None where the settings name no endpoint. Raises ConfigError."""
        if config.otlp_traces_endpoint is None:
            return None
        return cls(model, config, check_tracing(config.otlp_traces_endpoint, "model.json"))

    @property
    def num_dropped(self) -> int:
        return self._tracer.num_dropped

    def begin(self, outbox: Outbox, request: GenerateRequest) -> None:
        """Decides whether the request is traced."""
        header = request.traceparent or _triton_traceparent(outbox.handle)
        outbox.trace_parent = TraceParent.parse(header) if header else None
        outbox.traced = self._tracer.wants(outbox.trace_parent)
        outbox.keeps_texts = outbox.traced and self._with_content

    def end(self, outbox: Outbox) -> None:
        """Takes an outbox that has ended."""
        if outbox.traced:
            self._tracer.record(_trace(self._model, outbox))

    def close(self, timeout: float) -> None:
        self._tracer.close(timeout)


def _triton_traceparent(handle: Any) -> str | None:
    """Of Triton's own span, where the server traces with OpenTelemetry."""
    try:
        context = handle.trace().get_context()
    except AttributeError:  # an older pb_utils
        return None
    if not context:
        return None
    found = msgspec.json.decode(context).get("traceparent")
    return found if isinstance(found, str) else None


def _trace(model: str, outbox: Outbox) -> RequestTrace:
    offset = time.time_ns() - time.monotonic_ns()

    def unix(moment: float) -> int:
        return offset + round(moment * 1e9)

    request = outbox.request
    stream = request is not None and request.stream
    sent_text = stream and outbox.first_sent is not None
    return RequestTrace(
        parent=outbox.trace_parent,
        model=model,
        request_id=outbox.id,
        begin=unix(outbox.arrived),
        end=unix(outbox.ended_at),
        first_chunk=unix(outbox.first_sent) if sent_text and outbox.first_sent else None,
        phases=_phases(outbox, unix),
        sampling=request.sampling if request is not None else None,
        stream=stream,
        input_tokens=outbox.num_input_tokens,
        cached_tokens=outbox.num_cached_tokens,
        output_tokens=sum(choice.stream.num_tokens for choice in outbox.choices),
        finish_reasons=[choice.finish_reason for choice in outbox.choices],
        error=outbox.status,
        prompt=_prompt(request) if outbox.keeps_texts else None,
        texts=["".join(choice.texts or ()) for choice in outbox.choices],
    )


def _phases(outbox: Outbox, unix: Callable[[float], int]) -> Phases | None:
    if outbox.start is None:
        return None
    prefilled = outbox.first_token_at - outbox.start.prefill
    queued = max(outbox.arrived, prefilled - outbox.start.queue)
    last = outbox.last_token_at or outbox.ended_at
    return Phases(unix(queued), unix(prefilled), unix(outbox.first_token_at), unix(last))


def _prompt(request: GenerateRequest | None) -> str:
    """A prompt that came as token ids is shown as these."""
    if request is None:
        return ""
    return request.text if request.text is not None else str(request.input_ids)
