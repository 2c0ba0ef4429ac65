"""The fields of requests: which there are, and their plain values.

A field has an effect, or stands for nothing that could have one, or is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferx.engine.sampling import integer_between, read_boolean
from inferx.entrypoints.openai.errors import ApiError, invalid, of_request_error
from inferx.errors import InvalidArgument, unknown_name

# OpenAI's, then those that vLLM's server takes besides, then InferX's own
SAMPLING = (
    *("temperature", "top_p", "n", "stop", "seed", "logit_bias"),
    *("presence_penalty", "frequency_penalty"),
    *("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "bad_words"),
    *("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "priority", "cache_salt"),
    "sparsity",
)
COMMON = ("model", "stream", "stream_options", "max_tokens", "logprobs")
CHAT = ("messages", "max_completion_tokens", "top_logprobs")
CHAT_EXTRAS = ("add_generation_prompt", "chat_template_kwargs")
COMPLETION = ("prompt", "echo", "best_of")
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
    (*SAMPLING, *COMMON, *CHAT, *CHAT_EXTRAS, *COMPLETION, *_BOOKKEEPING, *_UNSUPPORTED)
)


def known_fields(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields that have a value and are supported. Raises ApiError for one that is neither of
    `names` nor of SAMPLING, or asks for something that is not supported."""
    fields = {name: value for name, value in given.items() if value is not None}
    for name, value in fields.items():
        if name in _UNSUPPORTED:
            if value not in _UNSUPPORTED[name]:
                raise not_supported(name)
        elif name in _BOOKKEEPING:
            if not isinstance(value, str):
                raise invalid(f"{name} is no string", name)
        elif name not in names and name not in SAMPLING:
            raise invalid(unknown_name("field", name, (*names, *SAMPLING)), name[:80])
    return fields


def not_supported(name: str, value: str = "") -> ApiError:
    """`value`: where the field is supported, and this is not."""
    return ApiError(
        400,
        f"{name} {value}".rstrip() + " is not supported by this server: leave it out",
        param=name,
        code="unsupported_parameter",
    )


def flag(fields: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """Raises ApiError."""
    try:
        return read_boolean(name, fields[name]) if name in fields else default
    except InvalidArgument as error:
        raise of_request_error(error) from None


def integer(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """Within low..high; None where it is not given. Raises ApiError."""
    try:
        return integer_between(low, high)(name, fields[name]) if name in fields else None
    except InvalidArgument as error:
        raise of_request_error(error) from None
