"""A chat's messages, as its template takes them."""

from __future__ import annotations

from typing import Any

from inferx.entrypoints.openai.errors import invalid
from inferx.entrypoints.openai.fields import not_supported
from inferx.errors import unknown_name

_MESSAGE_FIELDS = ("role", "content", "name", "reasoning_content")
# An answer of another server, which a client may send back, has them empty
_MESSAGE_UNSUPPORTED = (
    "tool_calls", "tool_call_id", "function_call", "audio", "refusal", "annotations",
)  # fmt: skip
_TEMPLATE_OWN = ("tokenizer", "messages", "tools", "add_generation_prompt")


def read_messages(given: Any) -> list[dict[str, Any]]:
    """With plain text as contents; all else about them is checked where they are rendered.

    Raises ApiError.
    """
    if not isinstance(given, list) or not given:
        raise invalid(
            'messages is no list of at least one {"role": ..., "content": ...}', "messages"
        )
    return [_message(f"messages[{index}]", message) for index, message in enumerate(given)]


def _message(where: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise invalid(f"{where} is no object", "messages")
    if given.get("role") in ("tool", "function"):
        raise not_supported(f"{where}.role", repr(given["role"]))
    message = {name: value for name, value in given.items() if value is not None}
    for name, value in list(message.items()):
        if name in _MESSAGE_UNSUPPORTED:
            if value:
                raise not_supported(f"{where}.{name}")
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


def read_variables(given: Any) -> dict[str, Any]:
    """Further variables of the template. Raises ApiError."""
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
