"""Traces as a collector receives them, and what becomes of them when there is none."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading

import pytest
from inferx.engine.sampling import SamplingParams
from inferx.errors import ConfigError
from inferx.observe.request_trace import Phases, RequestTrace, TraceParent
from inferx.observe.tracing import CAPACITY, Tracer, check_tracing, otlp_exporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from otlp_receiver import OtlpReceiver, attributes

PARENT = TraceParent(0x0AF7651916CD43DD8448EB211C80319C, 0x00F067AA0BA902B7, True)
SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND


def trace(**changes: object) -> RequestTrace:
    answered = RequestTrace(
        parent=PARENT,
        model="smollm2",
        request_id="42",
        begin=BEGIN,
        end=BEGIN + 9 * SECOND,
        first_chunk=BEGIN + 3 * SECOND,
        phases=Phases(BEGIN, BEGIN + SECOND, BEGIN + 2 * SECOND, BEGIN + 8 * SECOND),
        sampling=SamplingParams(max_tokens=7, temperature=0.5, top_k=9, seed=3, stop=("END",)),
        stream=True,
        input_tokens=20,
        cached_tokens=16,
        output_tokens=7,
        finish_reasons=["length"],
        error=None,
        prompt=None,
        texts=[""],
    )
    return answered._replace(**changes)


def received(*traces: RequestTrace) -> tuple[OtlpReceiver, list[Span]]:
    with OtlpReceiver() as receiver:
        tracer = Tracer(check_tracing(receiver.endpoint, "test"), 1.0, otlp_exporter)
        for one in traces:
            tracer.record(one)
        tracer.close(30)
        assert tracer.num_dropped == 0
        return receiver, receiver.spans


def test_a_request_is_a_span_of_the_genai_conventions_under_its_caller() -> None:
    receiver, spans = received(trace())
    assert receiver.paths == {"/v1/traces"}
    assert receiver.encodings == {"gzip"}
    assert receiver.services == {"inferx"}
    request = next(span for span in spans if span.kind == Span.SPAN_KIND_SERVER)
    assert request.name == "text_completion smollm2"
    assert request.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert request.parent_span_id.hex() == "00f067aa0ba902b7"
    assert (request.start_time_unix_nano, request.end_time_unix_nano) == (
        BEGIN,
        BEGIN + 9 * SECOND,
    )
    assert attributes(request) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "inferx",
        "gen_ai.request.model": "smollm2",
        "gen_ai.response.model": "smollm2",
        "gen_ai.response.id": "42",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 9,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.response.time_to_first_chunk": 3.0,
    }
    assert request.status.code == Status.STATUS_CODE_UNSET


def test_a_request_without_a_limit_has_none_in_its_span_and_no_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, spans = received(trace(sampling=SamplingParams(max_tokens=None)))
    assert "gen_ai.request.max_tokens" not in attributes(spans[-1])
    assert caplog.messages == []


def test_queue_prefill_and_decode_are_its_children() -> None:
    _, spans = received(trace())
    *children, request = spans
    assert [
        (span.name, span.start_time_unix_nano - BEGIN, span.end_time_unix_nano - BEGIN)
        for span in children
    ] == [
        ("queue", 0, SECOND),
        ("prefill", SECOND, 2 * SECOND),
        ("decode", 2 * SECOND, 8 * SECOND),
    ]
    assert {span.parent_span_id for span in children} == {request.span_id}
    assert {span.trace_id for span in spans} == {request.trace_id}


def test_a_request_without_a_caller_s_trace_begins_one() -> None:
    _, spans = received(trace(parent=None), trace(parent=None))
    requests = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    assert [span.parent_span_id for span in requests] == [b"", b""]
    assert len({span.trace_id for span in spans}) == 2


def test_an_error_is_told_by_its_status_alone() -> None:
    refused = trace(error="INVALID_ARG", phases=None, sampling=None, finish_reasons=[], texts=[])
    _, (span,) = received(refused)
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert span.status.message == ""
    assert attributes(span)["error.type"] == "INVALID_ARG"
    assert "gen_ai.response.finish_reasons" not in attributes(span)


def test_content_is_there_only_where_it_was_asked_for() -> None:
    reasons = [None, "length"]  # the error of the first one came when the second had ended
    _, spans = received(trace(prompt="Once", texts=[" upon", " in"], finish_reasons=reasons))
    found = attributes(spans[-1])
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert json.loads(found["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Once"}]}
    ]
    assert json.loads(found["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": text}],
            "finish_reason": reason,
        }
        for text, reason in ((" upon", "error"), (" in", "length"))
    ]
    assert found["gen_ai.request.stop_sequences"] == ["END"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_collector_that_is_busy_is_asked_again(status: int) -> None:
    with OtlpReceiver(statuses=(status,)) as receiver:
        tracer = Tracer(check_tracing(receiver.endpoint, "test"), 1.0, otlp_exporter)
        tracer.record(trace())
        receiver.wait(lambda spans: len(spans) == 4)
        tracer.close(30)
        assert tracer.num_dropped == 0


class Stuck(SpanExporter):
    """A collector that takes a connection and never answers."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.released = threading.Event()

    def export(self, spans: object) -> SpanExportResult:
        self.asked.set()
        self.released.wait()
        raise ConnectionError


def test_what_a_stuck_collector_does_not_take_is_dropped_and_counted() -> None:
    stuck = Stuck()
    tracer = Tracer("http://x", 1.0, lambda endpoint: stuck)
    tracer.record(trace())
    assert stuck.asked.wait(30)
    for _ in range(CAPACITY + 5):
        tracer.record(trace())
    assert tracer.num_dropped == 5
    stuck.released.set()
    tracer.close(30)
    assert tracer.num_dropped == CAPACITY + 6


def test_the_caller_decides_about_its_own_trace_and_the_ratio_about_others() -> None:
    tracer = Tracer("http://x", 1e-12, lambda endpoint: Stuck())
    assert tracer.wants(PARENT)
    assert not tracer.wants(PARENT._replace(sampled=False))
    assert not tracer.wants(None)
    tracer.close(30)


@pytest.mark.parametrize(
    ("header", "parent"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01", PARENT),
        ("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00", PARENT._replace(sampled=False)),
        ("cc-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01-more", PARENT),
        ("ff-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01", None),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
        ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
        ("00-0AF7651916CD43DD8448EB211C80319C-00F067AA0BA902B7-01", None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_a_traceparent_is_read_as_w3c_says(header: str, parent: TraceParent | None) -> None:
    assert TraceParent.parse(header) == parent


def test_the_endpoint_is_an_address_and_its_path_may_be_left_out() -> None:
    assert check_tracing("http://host:4318", "x") == "http://host:4318/v1/traces"
    assert check_tracing("https://host/otlp/v1/traces", "x") == "https://host/otlp/v1/traces"
    with pytest.raises(ConfigError, match=r"^model.json: otlp_traces_endpoint is 'host:4317': "):
        check_tracing("host:4317", "model.json")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name.startswith("opentelemetry") else find(name),
    )
    with pytest.raises(ConfigError, match=r"pip install 'inferx\[traces\]', or leave"):
        check_tracing("http://host:4318", "model.json")


def test_without_the_setting_nothing_of_opentelemetry_is_imported() -> None:
    script = (
        "import sys; sys.path[:0] = ['tests/unit']; import triton_double; triton_double.install()\n"
        "import inferx.triton.tracing\n"
        "from inferx.config import EngineConfig\n"
        "assert inferx.triton.tracing.RequestTracing.start('x', EngineConfig()) is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
