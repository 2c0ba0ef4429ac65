"""A Triton request's tensors and parameters, read into one typed and validated GenerateRequest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from inferx.engine.sampling import SamplingParams, integer_between, read_boolean
from inferx.errors import InvalidArgument, shown
from inferx.triton.interface import INPUT_IDS, SAMPLING_PARAMETERS, TEXT_INPUT

MAX_PARAMETERS_BYTES = 1 << 20  # of the sampling_parameters JSON
_LONGEST_TIMEOUT = 2**63 - 1  # microseconds
_LONGEST_READ_TIME = 1000  # likewise

T = TypeVar("T")


class ReturnFlags(NamedTuple):
    """Which outputs the client wants besides the text."""

    finish_reason: bool = False
    cumulative_logprob: bool = False
    logprobs: bool = False
    num_input_tokens: bool = False
    num_output_tokens: bool = False
    num_cached_tokens: bool = False


class GenerateRequest(NamedTuple):
    """What a client asks for. Exactly one of `text` and `input_ids` is given."""

    text: str | None
    input_ids: list[int] | None
    stream: bool
    exclude_input_in_output: bool
    returns: ReturnFlags
    parse_special_tokens: bool
    timeout: float | None  # seconds from arrival
    sampling: SamplingParams
    traceparent: str | None = None  # of the caller's trace, as W3C's header of that name
    read_time: float | None = None  # seconds a response, of the one who reads all such streams


def read_request(request: Any) -> GenerateRequest:
    """Reads a pb_utils.InferenceRequest. Raises InvalidArgument.

    A setting may come as a tensor of its own, in the sampling_parameters JSON, or as a request
    parameter (the `parameters` of `generate`, or tritonclient's `parameters=`); where several
    name it, the first of these wins.
    """
    tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    settings = {
        **_json_object("the request's parameters", request.parameters() or "{}"),
        **_sampling_parameters(tensors),
    }
    settings.pop("id", None)  # `generate` repeats the request's id among the parameters
    traceparent = _take(settings, "traceparent", None, _header)
    settings.pop("tracestate", None)  # comes with it; other vendors' part
    for name in _FLAGS:
        if name in tensors:
            settings[name] = bool(_only(name, tensors[name]))
    stream = _take(settings, "stream", False, read_boolean)
    text, input_ids = _prompt(tensors)
    returns = ReturnFlags(
        *(_take(settings, f"return_{name}", False, read_boolean) for name in ReturnFlags._fields)
    )
    return GenerateRequest(
        text=text,
        input_ids=input_ids,
        stream=stream,
        exclude_input_in_output=_take(settings, "exclude_input_in_output", stream, read_boolean),
        returns=returns,
        parse_special_tokens=_take(settings, "parse_special_tokens", True, read_boolean),
        timeout=_timeout(settings, request.timeout()),
        read_time=_read_time(settings),
        sampling=_sampling(settings, returns),
        traceparent=traceparent,
    )


_FLAGS = (
    "stream",
    "exclude_input_in_output",
    *(f"return_{name}" for name in ReturnFlags._fields),
)


def _take(settings: dict[str, Any], name: str, default: T, read: Callable[[str, Any], T]) -> T:
    value = settings.pop(name, None)
    return default if value is None else read(name, value)


def _header(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {shown(value)}: expected a string")
    return value


def _prompt(tensors: Mapping[str, Any]) -> tuple[str | None, list[int] | None]:
    has_text, has_ids = TEXT_INPUT in tensors, INPUT_IDS in tensors
    if has_text and has_ids:
        raise InvalidArgument(f"the request has {TEXT_INPUT} and {INPUT_IDS}: give one of them")
    if has_text:
        text = _text(TEXT_INPUT, _only(TEXT_INPUT, tensors[TEXT_INPUT]))
        if not text:
            raise InvalidArgument(f"{TEXT_INPUT} is empty: it needs at least one character")
        return text, None
    if not has_ids:
        raise InvalidArgument(f"the request has no prompt: give {TEXT_INPUT} or {INPUT_IDS}")
    ids = tensors[INPUT_IDS]
    if ids.ndim != 1:
        raise InvalidArgument(
            f"{INPUT_IDS} has the shape {list(ids.shape)}: expected one dimension of token ids"
        )
    if not ids.size:
        raise InvalidArgument(f"{INPUT_IDS} is empty: it needs at least one token id")
    return None, ids.tolist()


def _sampling_parameters(tensors: Mapping[str, Any]) -> dict[str, Any]:
    if SAMPLING_PARAMETERS not in tensors:
        return {}
    raw = _only(SAMPLING_PARAMETERS, tensors[SAMPLING_PARAMETERS])
    if len(raw) > MAX_PARAMETERS_BYTES:
        raise InvalidArgument(
            f"{SAMPLING_PARAMETERS} has {len(raw)} bytes: expected at most {MAX_PARAMETERS_BYTES}"
        )
    return _json_object(SAMPLING_PARAMETERS, _text(SAMPLING_PARAMETERS, raw) or "{}")


def _sampling(settings: dict[str, Any], returns: ReturnFlags) -> SamplingParams:
    best_of = _take(settings, "best_of", None, integer_between(1, 2**31 - 1))
    params = SamplingParams.parse(settings)
    if best_of not in (None, params.n):
        raise InvalidArgument(
            f"best_of is {best_of}: expected n, which is {params.n}, as InferX returns every choice"
        )
    # The engine computes them only where an output shows them.
    wanted = returns.logprobs or returns.cumulative_logprob
    return msgspec.structs.replace(params, logprobs=(params.logprobs or 0) if wanted else None)


def _timeout(settings: dict[str, Any], of_request: int) -> float | None:
    """Seconds. `generate` leaves the timeout among the parameters; 0 is none."""
    microseconds = _take(settings, "timeout", of_request, integer_between(0, _LONGEST_TIMEOUT))
    return microseconds / 1e6 if microseconds else None


def _read_time(settings: dict[str, Any]) -> float | None:
    microseconds = _take(settings, "read_time", None, integer_between(1, _LONGEST_READ_TIME))
    return microseconds / 1e6 if microseconds else None


def _only(name: str, tensor: Any) -> Any:
    if tensor.size != 1:
        raise InvalidArgument(f"{name} has {tensor.size} elements: expected exactly one")
    return tensor.item()


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{name} is not UTF-8: the byte 0x{raw[error.start]:02x} at position {error.start} "
            "does not belong there"
        ) from None


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{name} is not JSON: {_reason(error)}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(
            f"{name} is a JSON {_JSON_NAMES.get(type(value), 'number')}: expected an object, "
            'as in {"max_tokens": 64}'
        )
    return value


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


_JSON_NAMES = {list: "array", str: "string", bool: "boolean", type(None): "null"}
