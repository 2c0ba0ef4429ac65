"""What a client wants rendered, checked: plain JSON values of bounded size, known roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from inferx.errors import InvalidArgument, shown

# A template may build a control token around a role ("<|" + role + "|>"), so roles are no free text
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
MAX_MESSAGES = 4096
MAX_CHARS = 4 << 20  # in all strings of one chat
MAX_DEPTH = 32
_MAX_VALUES = 1 << 20


class Chat(NamedTuple):
    """What a template sees of a client: `messages` without the fields that are null, as
    transformers renders them, `tools` as JSON schemas, and further `variables`."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    variables: dict[str, Any]


def check_chat(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> Chat:
    """Copies the values. Raises InvalidArgument, naming what is wrong."""
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidArgument(
            'messages is not a list of at least one {"role": ..., "content": ...}'
        )
    if len(messages) > MAX_MESSAGES:
        raise InvalidArgument(f"there are {len(messages)} messages: at most {MAX_MESSAGES}")
    if tools is not None and not (
        isinstance(tools, list | tuple) and all(isinstance(tool, Mapping) for tool in tools)
    ):
        raise InvalidArgument("tools is not a list of objects, a JSON schema each")
    checker = _Checker()
    return Chat(
        [_message(index, message, checker) for index, message in enumerate(messages)],
        checker.plain("tools", tools),
        checker.plain("the template variables", variables),
    )


def _message(index: int, message: Any, checker: _Checker) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidArgument(f'{where} is not an object with "role" and "content"')
    role = message.get("role")
    if role not in ROLES:
        raise InvalidArgument(
            f"{where} has the role {shown(role)}: expected one of {', '.join(ROLES)}"
        )
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise InvalidArgument(f"{where} has no content")
    if not isinstance(content, str | list | tuple | None):
        raise InvalidArgument(f"{where}.content is neither a string nor a list of parts")
    return checker.plain(where, {key: item for key, item in message.items() if item is not None})


class _Checker:
    """Copies values and counts what they hold."""

    def __init__(self) -> None:
        self._chars = 0
        self._values = 0

    def plain(self, where: str, value: Any, depth: int = 0) -> Any:
        self._values += 1
        if self._values > _MAX_VALUES or depth > MAX_DEPTH:
            raise InvalidArgument(f"{where} is nested too deeply or has too many parts")
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            self._chars += len(value)
            if self._chars > MAX_CHARS:
                raise InvalidArgument(f"{where} exceeds the {MAX_CHARS} characters of a chat")
            return value
        if isinstance(value, list | tuple):
            return [self.plain(where, item, depth + 1) for item in value]
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {
                self.plain(where, key, depth): self.plain(where, item, depth + 1)
                for key, item in value.items()
            }
        raise InvalidArgument(f"{where} holds a value of type {type(value).__name__}: not JSON")
