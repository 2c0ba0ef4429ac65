"""Backlog: what streams have said and their client has not been sent yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from inferx_client.wire import Delta

_LOGPROB_BYTES = 256  # of one token of an entry, as Python objects


class Overflow(Exception):
    """The client reads too slowly for what it asked for."""


@dataclass(slots=True)
class Part:
    """What one choice has said since its last part; choices of all prompts are counted through."""

    choice: int
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None


class Backlog:
    """Deltas go in as they come; all that waits comes out at once, merged to a Part a choice.

    So a client that reads slowly gets fewer and larger parts, and memory holds at most `limit`
    bytes of them. For one taker, within one event loop.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._parts: dict[int, Part] = {}
        self._closed = False
        self._error: BaseException | None = None
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    def put(self, choice: int, delta: Delta) -> None:
        """Raises Overflow; the backlog keeps nothing then."""
        part = self._parts.get(choice)
        if part is None:
            part = self._parts[choice] = Part(choice)
        part.text += delta.text
        self._size += len(delta.text)
        if delta.logprobs:
            part.logprobs += delta.logprobs
            self._size += _LOGPROB_BYTES * sum(map(len, delta.logprobs))
        if delta.finish_reason is not None:
            part.finish_reason = delta.finish_reason
        if self._size > self._limit:
            failure = Overflow()
            self.fail(failure)
            raise failure
        self._changed.set()

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more will come. `take` raises the error after all that waits."""
        self._closed = True
        self._error = error
        self._changed.set()

    def fail(self, failure: BaseException) -> None:
        """Nobody will read on: the next `take` raises it, and what waits is dropped."""
        self._failure = self._failure or failure
        self._parts.clear()
        self._size = 0
        self._changed.set()

    async def filled(self) -> None:
        """Waits until there is something to take, or the end."""
        while not self._parts and self._failure is None and not self._closed:
            self._changed.clear()
            await self._changed.wait()

    def take(self) -> list[Part]:
        """All there is; empty at the end."""
        if self._failure is not None:
            raise self._failure
        if self._error is not None and not self._parts:
            raise self._error
        parts = list(self._parts.values())
        self._parts.clear()
        self._size = 0
        return parts
