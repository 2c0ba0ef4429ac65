"""Canceller: ends requests whose client has gone or whose deadline has passed, queued or running.

Asking Triton whether a request is cancelled is a round trip, so one thread asks for all of them in
turn, and not for every token.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from inferx.errors import Cancelled
from inferx.triton.outbox import Outbox

logger = logging.getLogger(__name__)

TICK = 0.02  # seconds
POLLS_A_TICK = 10  # 500 a second at most


class Canceller:
    def __init__(self, abort: Callable[[list[int]], None]) -> None:
        """`abort` ends sequences in the engine, which frees their pages."""
        self._abort = abort
        self._watched: deque[Outbox] = deque()  # the next to be asked first
        self._soonest = float("inf")  # time.monotonic seconds; no deadline is earlier
        self._wake = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="inferx-cancellation", daemon=True)
        self._thread.start()

    def watch(self, outbox: Outbox) -> None:
        """From any thread; until the outbox is closed."""
        with self._wake:
            self._watched.append(outbox)
            self._soonest = min(self._soonest, outbox.deadline)
            self._wake.notify()

    def close(self, timeout: float) -> bool:
        """Whether the thread ended within `timeout` seconds."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._wait():
            try:
                self._expire(time.monotonic())
                self._poll()
            except Exception as error:
                logger.error("polling for cancellations failed: %s", type(error).__name__)

    def _wait(self) -> bool:
        """One tick, or until there is something to watch. False: the end."""
        with self._wake:
            if self._watched:
                self._wake.wait_for(lambda: self._stopped, TICK)
            else:
                self._wake.wait_for(lambda: self._stopped or self._watched)
            return not self._stopped

    def _expire(self, now: float) -> None:
        if now < self._soonest:
            return
        with self._wake:
            watched = [outbox for outbox in self._watched if not outbox.closed]
            self._soonest = min((o.deadline for o in watched if o.deadline > now), default=_NEVER)
        for outbox in watched:
            if outbox.deadline <= now:
                self._cancel(
                    outbox, f"the deadline of {outbox.deadline - outbox.arrived:g} s passed"
                )

    def _poll(self) -> None:
        """Asks for the next ones. Those that have ended take no question and are let go, however
        many they are: more requests may end than can be asked for.
        """
        questions = POLLS_A_TICK
        for _ in range(len(self._watched)):
            outbox = self._watched.popleft()
            if outbox.closed:
                continue
            self._watched.append(outbox)  # before asking, which may fail
            if self._is_cancelled(outbox):
                self._cancel(outbox, "the client cancelled the request")
            questions -= 1
            if questions == 0:
                return

    def _is_cancelled(self, outbox: Outbox) -> bool:
        with outbox.lock:
            return not outbox.closed and outbox.handle.is_cancelled()

    def _cancel(self, outbox: Outbox, reason: str) -> None:
        self._abort(outbox.uids)
        outbox.deadline = _NEVER
        outbox.fail(Cancelled(reason))


_NEVER = float("inf")
