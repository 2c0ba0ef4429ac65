"""InFlight: the outboxes of all requests that have come and not ended."""

from __future__ import annotations

import threading

from inferx.triton.outbox import Outbox


class InFlight:
    def __init__(self) -> None:
        self._outboxes: set[Outbox] = set()
        self._changed = threading.Condition()
        self.had_any = False

    def add(self, outbox: Outbox) -> None:
        with self._changed:
            self.had_any = True
            self._outboxes.add(outbox)

    def remove(self, outbox: Outbox) -> None:
        with self._changed:
            self._outboxes.discard(outbox)
            if not self._outboxes:
                self._changed.notify_all()

    def sample(self) -> Outbox | None:
        """Any one of them."""
        with self._changed:
            return next(iter(self._outboxes), None)

    def snapshot(self) -> list[Outbox]:
        with self._changed:
            return list(self._outboxes)

    def wait_until_empty(self, timeout: float) -> bool:
        """Whether no request was left within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._outboxes, timeout)
