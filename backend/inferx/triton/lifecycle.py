"""Lifecycle: notices that Triton unloads the model or shuts down, drains, and frees everything.

Triton calls `finalize` only when no sender is open any more, and no client's stream is connected,
so the end cannot begin there. A watchdog asks the server whether it still serves the model: from
the first request on, which shows that it did, "no" means that the model is being unloaded.
"""

from __future__ import annotations

import logging
import threading
import time

from inferx.engine.client import EngineClient
from inferx.errors import Unavailable
from inferx.triton.inflight import InFlight
from inferx.triton.outbox import Outbox
from inferx.triton.readiness import Readiness

logger = logging.getLogger(__name__)

BUSY_INTERVAL = 0.1  # seconds between two questions while requests are in flight
IDLE_INTERVAL = 0.5  # seconds, otherwise
LAST_RESPONSES = 0.5  # seconds for the senders of cancelled requests
ENGINE_END = 1.0  # seconds for the engine process to end by itself
_MARGIN = 2.0  # seconds


class Lifecycle:
    def __init__(
        self,
        engine: EngineClient,
        in_flight: InFlight,
        readiness: Readiness,
        drain_timeout: float,
    ) -> None:
        self._engine = engine
        self._in_flight = in_flight
        self._drain_timeout = drain_timeout
        self._readiness = readiness
        self._finishing = threading.Event()  # Triton has called finalize
        self._drain_lock = threading.Lock()
        self.draining = False
        self._thread = threading.Thread(target=self._watch, name="inferx-watchdog", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """For `finalize`: ends the watchdog, at once, and what it has not yet ended. Bounded."""
        self._finishing.set()
        self._thread.join(LAST_RESPONSES + ENGINE_END + _MARGIN)
        self._drain()

    def _watch(self) -> None:
        asked = time.monotonic()
        while not self._finishing.wait(BUSY_INTERVAL):
            busy = self._in_flight.sample()
            if busy is None and time.monotonic() - asked < IDLE_INTERVAL:
                continue
            asked = time.monotonic()
            if self._in_flight.had_any and not self._is_served(busy):
                self._drain()
                return

    def _is_served(self, busy: Outbox | None) -> bool:
        try:
            if busy is None:
                return self._readiness.is_served(busy=False)
            with busy.lock:  # it stays in flight meanwhile
                return busy.closed or self._readiness.is_served(busy=True)
        except Exception as error:  # a server that shuts down answers no question
            logger.warning("the server does not say whether it serves: %s", type(error).__name__)
            return False

    def _drain(self) -> None:
        """Refuses new requests, waits for those in flight, cancels the rest, ends the engine."""
        with self._drain_lock:
            if self.draining:
                return
            self.draining = True
            self._engine.drain()
            outboxes = self._in_flight.snapshot()
            if outboxes:
                logger.info("draining: %d requests in flight", len(outboxes))
            if not self._wait_for_requests() and not self._finishing.is_set():
                self._cancel_all()
            self._engine.close(ENGINE_END)

    def _wait_for_requests(self) -> bool:
        deadline = time.monotonic() + self._drain_timeout
        while not self._finishing.is_set() and (left := deadline - time.monotonic()) > 0:
            if self._in_flight.wait_until_empty(min(left, BUSY_INTERVAL)):
                return True
        return self._in_flight.wait_until_empty(0)

    def _cancel_all(self) -> None:
        outboxes = self._in_flight.snapshot()
        logger.warning("draining: cancelling %d requests", len(outboxes))
        for outbox in outboxes:
            self._engine.abort(outbox.uids)
            outbox.fail(
                Unavailable("the model is being unloaded and could not finish this request")
            )
        self._in_flight.wait_until_empty(LAST_RESPONSES)
