"""RecentErrors: what requests failed with lately, for the status page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from inferx.entrypoints.openai.errors import ApiError
from inferx.entrypoints.openai.fields import FIELDS

_KEPT = 20  # different sentences; a client can make up as many as it likes


@dataclass
class _Entry:
    count: int = 0
    wall: float = 0.0  # Unix seconds of the last one
    monotonic: float = 0.0


class RecentErrors:
    """One entry for each status and sentence. For one event loop.

    Sentences that may quote a request (statuses 400, 404 and 405) are replaced: what clients ask is
    not shown to those who watch the server.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, str], _Entry] = {}  # the latest one last

    def note(self, error: ApiError) -> None:
        key = (error.status, _sentence(error))
        entry = self._entries.pop(key, None) or _Entry()
        entry.count += 1
        entry.wall, entry.monotonic = time.time(), time.monotonic()
        self._entries[key] = entry
        if len(self._entries) > _KEPT:
            del self._entries[next(iter(self._entries))]

    def shown(self) -> list[dict[str, Any]]:
        """The latest one first. `age` in seconds does not depend on the clock, `time` does."""
        now = time.monotonic()
        return [
            {
                "status": status,
                "message": message,
                "count": entry.count,
                "time": round(entry.wall),
                "age": round(now - entry.monotonic, 1),
            }
            for (status, message), entry in reversed(self._entries.items())
        ]


def _sentence(error: ApiError) -> str:
    if error.status == 400:
        where = f": {error.param}" if error.param in FIELDS else ""
        return f"a request was invalid{where}"
    if error.status == 404:
        return "a request named a model or a path that is not here"
    if error.status == 405:
        return "a request came with a method that its path does not take"
    return error.message
