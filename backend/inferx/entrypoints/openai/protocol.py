"""The endpoint's requests: OpenAI's JSON, checked, with the sampling parameters under our names.

A field has an effect, or stands for nothing that could have one, or is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inferx.engine.sampling import MAX_LOGPROBS, SamplingParams, integer_between, read_boolean
from inferx.entrypoints.openai.errors import ApiError, invalid, of_request_error
from inferx.errors import InvalidArgument, unknown_name

MAX_PROMPTS = 128
_INT32 = 2**31 - 1

# OpenAI's, then those that vLLM's server takes besides, then InferX's own
_SAMPLING = (
    *("temperature", "top_p", "n", "stop", "seed", "logit_bias"),
    *("presence_penalty", "frequency_penalty"),
    *("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "bad_words"),
    *("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "priority", "cache_salt"),
    "sparsity",
)
_COMMON = ("model", "stream", "stream_options", "max_tokens", "logprobs")
_CHAT = ("messages", "max_completion_tokens", "top_logprobs")
_CHAT_EXTRAS = ("add_generation_prompt", "chat_template_kwargs")
_COMPLETION = ("prompt", "echo")
# They say who asks, and change no answer
_BOOKKEEPING = ("user", "safety_identifier")
# What is not supported, with the values that ask for nothing
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "suffix": ("",),
}
FIELDS = frozenset(
    (*_SAMPLING, *_COMMON, *_CHAT, *_CHAT_EXTRAS, *_COMPLETION, *_BOOKKEEPING, *_UNSUPPORTED)
)
_MESSAGE_FIELDS = ("role", "content", "name", "reasoning_content")
_MESSAGE_UNSUPPORTED = ("tool_calls", "tool_call_id", "function_call", "audio", "refusal")
_TEMPLATE_OWN = ("tokenizer", "messages", "tools", "add_generation_prompt")

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
    fields = _known(given, (*_COMMON, *_CHAT, *_CHAT_EXTRAS))
    top = _integer(fields, "top_logprobs", 0, MAX_LOGPROBS)
    logprobs = _flag(fields, "logprobs")
    if top is not None and not logprobs:
        raise invalid("top_logprobs is given without logprobs: set logprobs to true", "logprobs")
    return ChatRequest(
        **_common(fields, _chat_max_tokens(fields), (top or 0) if logprobs else None),
        messages=_messages(fields.get("messages")),
        add_generation_prompt=_flag(fields, "add_generation_prompt", default=True),
        variables=_variables(fields.get("chat_template_kwargs")),
    )


def completion_request(given: Mapping[str, Any]) -> CompletionRequest:
    """Raises ApiError, naming the field."""
    fields = _known({k: v for k, v in given.items() if k != "best_of"}, (*_COMMON, *_COMPLETION))
    if given.get("best_of") not in (None, fields.get("n", 1)):
        raise invalid("best_of is not supported: leave it out, or set it to n", "best_of")
    echo = _flag(fields, "echo")
    logprobs = _integer(fields, "logprobs", 0, MAX_LOGPROBS)
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


def _known(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields that have a value and are supported."""
    fields = {name: value for name, value in given.items() if value is not None}
    for name, value in fields.items():
        if name in _UNSUPPORTED:
            if value not in _UNSUPPORTED[name]:
                raise _not_supported(name)
        elif name in _BOOKKEEPING:
            if not isinstance(value, str):
                raise invalid(f"{name} is no string", name)
        elif name not in names and name not in _SAMPLING:
            raise invalid(unknown_name("field", name, (*names, *_SAMPLING)), name[:80])
    return fields


def _not_supported(name: str) -> ApiError:
    return ApiError(
        400,
        f"{name} is not supported by this server: leave it out",
        param=name,
        code="unsupported_parameter",
    )


def _common(
    fields: Mapping[str, Any], max_tokens: dict[str, Any], logprobs: int | None
) -> dict[str, Any]:
    sampling = {name: fields[name] for name in _SAMPLING if name in fields} | max_tokens
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    try:
        SamplingParams.parse(sampling)
    except InvalidArgument as error:
        raise of_request_error(error) from None
    stream = _flag(fields, "stream")
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


def _flag(fields: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    try:
        return read_boolean(name, fields[name]) if name in fields else default
    except InvalidArgument as error:
        raise of_request_error(error) from None


def _integer(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    try:
        return integer_between(low, high)(name, fields[name]) if name in fields else None
    except InvalidArgument as error:
        raise of_request_error(error) from None


def _chat_max_tokens(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without a limit a chat's answer may be as long as the model takes."""
    new, old = (
        _integer(fields, name, 1, _INT32) for name in ("max_completion_tokens", "max_tokens")
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
            raise _not_supported(f"stream_options.{name}"[:80])
    if options.get("include_obfuscation"):
        raise _not_supported("stream_options.include_obfuscation")
    return _flag({k: v for k, v in options.items() if v is not None}, "include_usage")


def _messages(given: Any) -> list[dict[str, Any]]:
    """With plain text as contents; all else about them is checked where they are rendered."""
    if not isinstance(given, list) or not given:
        raise invalid(
            'messages is no list of at least one {"role": ..., "content": ...}', "messages"
        )
    return [_message(f"messages[{index}]", message) for index, message in enumerate(given)]


def _message(where: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise invalid(f"{where} is no object", "messages")
    if given.get("role") in ("tool", "function"):
        raise _not_supported(f"{where}.role {given['role']!r}")
    message = {name: value for name, value in given.items() if value is not None}
    for name, value in list(message.items()):
        if name in _MESSAGE_UNSUPPORTED:
            if value:
                raise _not_supported(f"{where}.{name}")
            del message[name]
        elif name not in _MESSAGE_FIELDS:
            raise invalid(f"{where}: {unknown_name('field', name, _MESSAGE_FIELDS)}", "messages")
    if isinstance(message.get("content"), list):
        parts = enumerate(message["content"])
        message["content"] = "\n".join(
            _text_part(f"{where}.content[{index}]", part) for index, part in parts
        )
    return message


def _text_part(where: str, part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise invalid(f'{where} is no object with a "type"', "messages")
    if part["type"] != "text":
        raise invalid(
            f"{where} is of the type {part['type'][:40]!r}: this server takes text alone, "
            "no images, audio or files",
            "messages",
        )
    if not isinstance(part.get("text"), str):
        raise invalid(f"{where}.text is no string", "messages")
    return part["text"]


def _variables(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise invalid("chat_template_kwargs is no object", "chat_template_kwargs")
    for name in _TEMPLATE_OWN:
        if name in given:
            raise invalid(
                f"chat_template_kwargs.{name} is not for clients to set", "chat_template_kwargs"
            )
    return given


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
