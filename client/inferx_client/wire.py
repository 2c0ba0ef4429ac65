"""Requests and responses as tritonclient's protobuf messages, and as typed objects."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
from tritonclient.grpc import service_pb2

# What a Delta shows besides its text: what every server knows that the client may meet, as Triton
# refuses a request with an input that the model, or an ensemble before it, has not declared.
# `logprobs`, `cumulative_logprob` and `num_cached_tokens` may be added.
DEFAULT_DETAILS = ("finish_reason", "num_input_tokens", "num_output_tokens")

# An error of a stream is text alone, and InferX begins it with the status. (Triton would send a
# gRPC status on request, `triton_grpc_error`; tritonserver 2.51 crashes over it when several
# streams end in errors at once.)
_ERROR = re.compile(r"(INVALID_ARG|UNAVAILABLE|CANCELLED|INTERNAL): (.*)", re.DOTALL)
_STATUS = {  # gRPC's names to Triton's
    grpc.StatusCode.INVALID_ARGUMENT: "INVALID_ARG",
    grpc.StatusCode.DEADLINE_EXCEEDED: "CANCELLED",
    grpc.StatusCode.UNIMPLEMENTED: "UNSUPPORTED",
}
# How the message begins where the server did not answer: no word of its own, but of the channel's
NO_CONNECTION = "the connection to the server failed"
_NUMBERS = {"UINT32": "I", "INT32": "i", "FP32": "f"}


class InferenceError(Exception):
    """A request failed. `status`: INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL, NOT_FOUND, …"""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message

    @classmethod
    def of(cls, error: grpc.RpcError) -> InferenceError:
        code, details = error.code(), error.details() or "no reason was given"
        if code == grpc.StatusCode.UNAVAILABLE:
            return cls("UNAVAILABLE", f"{NO_CONNECTION}: {details}")
        return cls(_STATUS.get(code, code.name), details)

    @classmethod
    def of_text(cls, text: str) -> InferenceError:
        """UNKNOWN where the text begins with no status: then it is Triton's own."""
        found = _ERROR.fullmatch(text)
        return cls(found.group(1), found.group(2)) if found else cls("UNKNOWN", text)


class Delta(NamedTuple):
    """One choice's part of one response."""

    text: str
    choice: int = 0
    finish_reason: str | None = None  # "stop" or "length" with the choice's last delta
    num_output_tokens: int | None = None  # in this delta
    num_input_tokens: int | None = None
    num_cached_tokens: int | None = None  # of these; the first response says it, where asked
    cumulative_logprob: float | None = None
    logprobs: list[dict[str, Any]] | None = None  # one entry per token of this delta


@dataclass
class Completion:
    """A whole answer: a list item per choice."""

    texts: list[str] = field(default_factory=list)
    finish_reasons: list[str | None] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)  # 0 where `details` leaves it out
    cumulative_logprobs: list[float | None] = field(default_factory=list)
    logprobs: list[list[dict[str, Any]]] = field(default_factory=list)
    num_input_tokens: int | None = None
    num_cached_tokens: int | None = None  # of these, found in the prefix cache; where asked

    @property
    def text(self) -> str:
        """The first choice's."""
        return self.texts[0]

    def add(self, delta: Delta) -> None:
        while len(self.texts) <= delta.choice:
            self.texts.append("")
            self.finish_reasons.append(None)
            self.num_output_tokens.append(0)
            self.cumulative_logprobs.append(None)
            self.logprobs.append([])
        self.texts[delta.choice] += delta.text
        self.num_output_tokens[delta.choice] += delta.num_output_tokens or 0
        self.logprobs[delta.choice] += delta.logprobs or []
        if delta.finish_reason is not None:
            self.finish_reasons[delta.choice] = delta.finish_reason
        if delta.cumulative_logprob is not None:
            self.cumulative_logprobs[delta.choice] = delta.cumulative_logprob
        if delta.num_input_tokens is not None:
            self.num_input_tokens = delta.num_input_tokens
        if delta.num_cached_tokens is not None:
            self.num_cached_tokens = delta.num_cached_tokens


def generate_request(
    model: str,
    prompt: str | Sequence[int],
    *,
    stream: bool,
    sampling: Mapping[str, Any],
    details: Iterable[str] = DEFAULT_DETAILS,
    exclude_input: bool = True,
    timeout: float | None = None,
    request_id: str = "",
) -> service_pb2.ModelInferRequest:
    """A request for `prompt`, text or token ids. `timeout`: seconds, enforced by the server.

    `sampling` and `details` are named as in the README's interface: max_tokens, finish_reason, …
    Raises InferenceError for a prompt that is neither, or no valid Unicode.
    """
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    if isinstance(prompt, str):
        _add_bytes(request, "text_input", _encoded(prompt))
    else:
        _add(request, "input_ids", "INT32", len(prompt), _packed(prompt))
    _add_bool(request, "stream", stream)
    _add_bool(request, "exclude_input_in_output", exclude_input)
    _add_bytes(request, "sampling_parameters", json.dumps(dict(sampling)).encode())
    for name in details:
        _add_bool(request, f"return_{name}", True)
    if timeout is not None:
        set_timeout(request, timeout)
    return request


def set_timeout(request: service_pb2.ModelInferRequest, seconds: float) -> None:
    """After which the server ends the request; a microsecond at least."""
    request.parameters["timeout"].int64_param = max(1, round(seconds * 1e6))


def deltas(response: service_pb2.ModelStreamInferResponse) -> list[Delta]:
    """A delta per choice in the response. Raises InferenceError."""
    if response.error_message:
        raise InferenceError.of_text(response.error_message)
    answer = response.infer_response
    values = {
        output.name: _values(output.datatype, raw)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    texts = values.get("text_output", [])
    first = 0
    # A response has an element for each choice; one that holds a single element names its choice.
    if len(texts) == 1 and "choice" in answer.parameters:
        first = answer.parameters["choice"].int64_param
    prompt_size, cached = values.get("num_input_tokens"), values.get("num_cached_tokens")
    return [
        Delta(
            text=text,
            choice=first + index,
            finish_reason=_ended(_item(values, "finish_reason", index)),
            num_output_tokens=_item(values, "num_output_tokens", index),
            num_input_tokens=prompt_size[0] if prompt_size else None,
            num_cached_tokens=cached[0] if cached else None,
            cumulative_logprob=_item(values, "cumulative_logprob", index),
            logprobs=_parsed(_item(values, "logprobs", index)),
        )
        for index, text in enumerate(texts)
    ]


def _item(values: Mapping[str, list[Any]], name: str, index: int) -> Any:
    items = values.get(name)
    return items[index] if items and index < len(items) else None


def _ended(reason: str | None) -> str | None:
    return None if reason in (None, "None") else reason


def _parsed(logprobs: str | None) -> list[dict[str, Any]] | None:
    return json.loads(logprobs) if logprobs else None


def _values(datatype: str, raw: bytes) -> list[Any]:
    if datatype == "BYTES":
        return _strings(raw)
    code = _NUMBERS[datatype]
    return list(struct.unpack(f"<{len(raw) // 4}{code}", raw))


def _strings(raw: bytes) -> list[str]:
    """Triton's BYTES: a little-endian 32-bit length before each element."""
    if len(raw) - 4 == int.from_bytes(raw[:4], "little"):
        return [raw[4:].decode("utf-8")]  # the usual case, a single one
    found, start = [], 0
    while start < len(raw):
        (size,) = struct.unpack_from("<I", raw, start)
        found.append(raw[start + 4 : start + 4 + size].decode("utf-8"))
        start += 4 + size
    return found


def _add(request: Any, name: str, datatype: str, size: int, raw: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=[size])
    request.raw_input_contents.append(raw)


def _packed(token_ids: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(token_ids)}i", *token_ids)
    except struct.error:
        raise InferenceError(
            "INVALID_ARG", "the prompt is neither text nor token ids, integers of 32 bits"
        ) from None


def _encoded(prompt: str) -> bytes:
    try:
        return prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InferenceError(
            "INVALID_ARG",
            f"the prompt has an unpaired surrogate at character {error.start}: send valid Unicode",
        ) from None


def _add_bytes(request: Any, name: str, data: bytes) -> None:
    _add(request, name, "BYTES", 1, struct.pack("<I", len(data)) + data)


def _add_bool(request: Any, name: str, value: bool) -> None:
    _add(request, name, "BOOL", 1, b"\1" if value else b"\0")
