"""Answer: what chat and completions have in common in their answers' shapes."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from inferx_client import Completion

from inferx.entrypoints.openai.backlog import Part
from inferx.entrypoints.openai.generation import Usage
from inferx.entrypoints.openai.protocol import Request

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: %b\n\n" % _encode(value)


class Answer(ABC):
    """The answer to one request, as a whole or as server-sent events."""

    prefix: ClassVar[str]  # of its id
    whole_kind: ClassVar[str]  # the field `object`
    chunk_kind: ClassVar[str]

    def __init__(self, request: Request) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = request.model
        self._include_usage = request.include_usage

    @abstractmethod
    def choices(self, completions: Sequence[Completion]) -> list[dict[str, Any]]:
        """The field `choices` of the whole answer, from a completion for each prompt."""

    @abstractmethod
    def chunk_choice(self, part: Part) -> dict[str, Any]:
        """The only item of a chunk's `choices`."""

    def whole(self, completions: Sequence[Completion], usage: Usage) -> bytes:
        body = self._body(self.whole_kind, self.choices(completions))
        return _encode({**body, "usage": usage.body})

    def events(self, parts: Sequence[Part]) -> bytes:
        """An event for each part."""
        return b"".join(event(self._chunk([self.chunk_choice(part)], None)) for part in parts)

    def ending(self, usage: Usage) -> bytes:
        """The events after the last part."""
        last = event(self._chunk([], usage.body)) if self._include_usage else b""
        return last + DONE

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        body = self._body(self.chunk_kind, choices)
        return {**body, "usage": usage} if self._include_usage else body

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
