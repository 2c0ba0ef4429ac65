"""The endpoint's requests: OpenAI's JSON, checked, with the sampling parameters under our names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from inferx.engine.sampling import MAX_LOGPROBS, MAX_N, SamplingParams
from inferx.entrypoints.openai.errors import invalid, of_request_error
from inferx.entrypoints.openai.fields import (
    CHAT,
    CHAT_EXTRAS,
    COMMON,
    COMPLETION,
    SAMPLING,
    flag,
    integer,
    known_fields,
    not_supported,
)
from inferx.entrypoints.openai.messages import read_messages, read_variables
from inferx.errors import InvalidArgument

MAX_PROMPTS = 128
_INT32 = 2**31 - 1

Prompt = str | list[int]


@dataclass(frozen=True)
class Request:
    """What both kinds of requests have. `sampling` has SamplingParams' names, and is valid."""

    model: str
    sampling: dict[str, Any]
    stream: bool
    include_usage: bool
    logprobs: int | None  # likeliest tokens to show besides the sampled one; None: no logprobs

    @property
    def shows_usage(self) -> bool:
        return self.include_usage or not self.stream


@dataclass(frozen=True)
class ChatRequest(Request):
    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    variables: dict[str, Any]  # further ones of the template


@dataclass(frozen=True)
class CompletionRequest(Request):
    prompts: list[Prompt]
    echo: bool


def json_object(body: bytes) -> dict[str, Any]:
    """Raises ApiError."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise invalid(f"the request's body is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise invalid('the request\'s body is not a JSON object, as in {"model": ...}')
    return value


def chat_request(given: Mapping[str, Any]) -> ChatRequest:
    """Raises ApiError, naming the field."""
    fields = known_fields(given, (*COMMON, *CHAT, *CHAT_EXTRAS))
    top = integer(fields, "top_logprobs", 0, MAX_LOGPROBS)
    logprobs = flag(fields, "logprobs")
    if top is not None and not logprobs:
        raise invalid("top_logprobs is given without logprobs: set logprobs to true", "logprobs")
    return ChatRequest(
        **_common(fields, _chat_max_tokens(fields), (top or 0) if logprobs else None),
        messages=read_messages(fields.get("messages")),
        add_generation_prompt=flag(fields, "add_generation_prompt", default=True),
        variables=read_variables(fields.get("chat_template_kwargs")),
    )


def completion_request(given: Mapping[str, Any]) -> CompletionRequest:
    """Raises ApiError, naming the field."""
    fields = known_fields(given, (*COMMON, *COMPLETION))
    best_of = integer(fields, "best_of", 1, MAX_N)
    if best_of not in (None, integer(fields, "n", 1, MAX_N) or 1):
        raise invalid("best_of is not supported: leave it out, or set it to n", "best_of")
    echo = flag(fields, "echo")
    logprobs = integer(fields, "logprobs", 0, MAX_LOGPROBS)
    if echo and logprobs is not None:
        raise invalid(
            "echo with logprobs is not supported, as prompts have no logprobs here: "
            "leave one of them out",
            "echo",
        )
    max_tokens = {"max_tokens": fields["max_tokens"]} if "max_tokens" in fields else {}
    return CompletionRequest(
        **_common(fields, max_tokens, logprobs), prompts=_prompts(fields.get("prompt")), echo=echo
    )


def check_sequences(request: CompletionRequest, limit: int) -> None:
    """Raises ApiError for prompts that together are more of them than the model ever takes: its
    queue would be full for each try. (Of one prompt the backend says it.)"""
    prompts, n = len(request.prompts), int(request.sampling.get("n", 1))
    if prompts > 1 and prompts * n > limit:
        raise invalid(
            f"prompt has {prompts} prompts and n is {n}: together {prompts * n} sequences, and the "
            f"model takes at most {limit} at once; send fewer in a request",
            "prompt",
        )


def _common(
    fields: Mapping[str, Any], max_tokens: dict[str, Any], logprobs: int | None
) -> dict[str, Any]:
    sampling = {name: fields[name] for name in SAMPLING if name in fields} | max_tokens
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    try:
        SamplingParams.parse(sampling)
    except InvalidArgument as error:
        raise of_request_error(error) from None
    stream = flag(fields, "stream")
    return {
        "model": _model(fields.get("model")),
        "sampling": sampling,
        "stream": stream,
        "include_usage": _include_usage(fields, stream),
        "logprobs": logprobs,
    }


def _model(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise invalid("model is missing or no string: name one that /v1/models lists", "model")
    return name


def _chat_max_tokens(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without a limit a chat's answer may be as long as the model takes."""
    new, old = (
        integer(fields, name, 1, _INT32) for name in ("max_completion_tokens", "max_tokens")
    )
    if None not in (new, old) and new != old:
        raise invalid(
            f"max_completion_tokens is {new} and max_tokens is {old}: give one of them",
            "max_completion_tokens",
        )
    return {"max_tokens": old if new is None else new}


def _include_usage(fields: Mapping[str, Any], stream: bool) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise invalid("stream_options is no object", "stream_options")
    if not stream:
        raise invalid("stream_options is given without stream: leave it out", "stream_options")
    for name, value in options.items():
        # Nothing is ever padded here
        if name not in ("include_usage", "include_obfuscation") and value not in (None, False):
            raise not_supported(f"stream_options.{name}"[:80])
    if options.get("include_obfuscation"):
        raise not_supported("stream_options.include_obfuscation")
    return flag({k: v for k, v in options.items() if v is not None}, "include_usage")


def _prompts(given: Any) -> list[Prompt]:
    if isinstance(given, str):
        return [_text(given)]
    if isinstance(given, list) and given:
        if all(type(item) is int for item in given):
            return [_token_ids(given)]
        if len(given) > MAX_PROMPTS:
            raise invalid(f"prompt has {len(given)} prompts: at most {MAX_PROMPTS}", "prompt")
        if all(isinstance(item, str) for item in given):
            return [_text(item) for item in given]
        if all(isinstance(item, list) and item for item in given):
            return [_token_ids(item) for item in given]
    raise invalid(
        "prompt is neither a string, nor a list of strings, of token ids, or of lists of token ids",
        "prompt",
    )


def _text(text: str) -> str:
    if not text:
        raise invalid("prompt is empty: it needs at least one character", "prompt")
    return text


def _token_ids(ids: list[Any]) -> list[int]:
    if not all(type(item) is int and 0 <= item <= _INT32 for item in ids):
        raise invalid("prompt holds something that is no token id", "prompt")
    return ids
