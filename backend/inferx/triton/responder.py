"""Responder: threads that turn outputs into text and send it, the first bottleneck under load.

A send is a blocking round trip to the server of some 150 microseconds, in which other threads run.
So there are a few shards, a thread each, which take the outboxes with something to send from one
queue: whoever waits longest is next. An outbox is in the queue or with a shard once at most, which
keeps its responses in order. A shard takes everything that waits in an outbox and sends it as one
response: at low load every token goes out alone, under load tokens merge by themselves, and nothing
ever waits for a timer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from inferx.engine.messages import RequestOutput
from inferx.errors import Cancelled, InvalidArgument, RequestError, Status, Unavailable
from inferx.observe.request_stats import RequestStats
from inferx.triton.logs import engine_error, internal_error, shown_id
from inferx.triton.outbox import ANY_UID, Choice, Outbox
from inferx.triton.responses import FINAL, error_response, response

logger = logging.getLogger(__name__)


class Responder:
    """`abort` ends sequences in the engine; `on_closed` hears of every outbox that has ended."""

    def __init__(
        self,
        num_shards: int,
        abort: Callable[[list[int]], None],
        on_closed: Callable[[Outbox], None],
    ) -> None:
        self._queue: SimpleQueue[Outbox | None] = SimpleQueue()
        self._closing = False
        self._shards = [
            _Shard(number, self._queue, abort, on_closed) for number in range(num_shards)
        ]

    def outbox(self, handle: Any) -> Outbox:
        """A Triton request's outbox."""
        return Outbox(handle, handle.request_id(), time.monotonic(), self._queue.put)

    def stats(self) -> RequestStats:
        """Since the start."""
        return RequestStats.total(shard.stats for shard in self._shards)

    def close(self, timeout: float) -> bool:
        """Ends the shards once they have sent what they know of; whether they did within it."""
        deadline = time.monotonic() + timeout
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        joined = [shard.join(deadline - time.monotonic()) for shard in self._shards]
        return all(joined)


class _Shard:
    def __init__(
        self,
        number: int,
        queue: SimpleQueue[Outbox | None],
        abort: Callable[[list[int]], None],
        on_closed: Callable[[Outbox], None],
    ) -> None:
        self._abort = abort
        self._on_closed = on_closed
        self._queue = queue
        self.stats = RequestStats()
        self._thread = threading.Thread(
            target=self._run, name=f"inferx-responses-{number}", daemon=True
        )
        self._thread.start()

    def join(self, timeout: float) -> bool:
        self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while outbox := self._next():
            if not outbox.closed:
                try:
                    self._serve(outbox)
                except Exception as error:
                    self._end_with(outbox, internal_error(error, outbox.id))
            outbox.served()
            del outbox

    def _next(self) -> Outbox | None:
        """None: the end. It goes from shard to shard behind all that there is to send, also behind
        what a shard puts back meanwhile."""
        while (outbox := self._queue.get()) is None:
            is_last = self._queue.empty()
            self._queue.put(None)
            if is_last:
                return None
        return outbox

    def _serve(self, outbox: Outbox) -> None:
        """Sends all that has come for one request."""
        outputs, error = _until_error(outbox.take(), outbox.id)
        changed = self._advance(outbox, outputs)
        if outbox.request is not None and outbox.request.stream:
            self._send_deltas(outbox, changed)
        elif error is None and changed and outbox.finished:
            self._send(outbox, outbox.choices, final=True)
        if error is not None and not outbox.closed:
            self._end_with(outbox, error)

    def _advance(self, outbox: Outbox, outputs: list[RequestOutput]) -> list[Choice]:
        """Adds outputs to their choices' texts; returns the choices that changed."""
        changed = []
        for choice in outbox.choices:
            own = (
                outputs if len(outbox.choices) == 1 else [o for o in outputs if o.uid == choice.uid]
            )
            if own and choice.finish_reason is None:
                choice.add(choice.stream.push(own))
                changed.append(choice)
                if choice.finish_reason is not None and own[-1].finish_reason is None:
                    self._abort([choice.uid])  # a stop string: the engine would go on
        return changed

    def _send_deltas(self, outbox: Outbox, changed: list[Choice]) -> None:
        """One response a choice; without text or an end its tokens wait for the next."""
        ready = [c for c in changed if c.text or c.finish_reason is not None]
        for choice in ready:
            self._send(outbox, [choice], final=choice is ready[-1] and outbox.finished)

    def _send(self, outbox: Outbox, shown: list[Choice], *, final: bool) -> None:
        built = response(outbox, shown)
        if final:
            self._close(outbox)
            outbox.sender.send(built, flags=FINAL)
        else:
            outbox.sender.send(built)
        self._count(outbox, sum(choice.num_tokens for choice in shown))
        for choice in shown:
            choice.sent()
        if final:
            self._ended(outbox, None)

    def _end_with(self, outbox: Outbox, error: RequestError) -> None:
        """The last response is an error."""
        sending_failed = outbox.closed  # the final response
        self._close(outbox)
        # Only now: a request that is being admitted looks for `closed` once its uids are known
        self._abort([c.uid for c in outbox.choices if c.finish_reason is None])
        if sending_failed:
            self._ended(outbox, error.status)
            return
        try:
            outbox.sender.send(error_response(error), flags=FINAL)
        except Exception as failure:
            logger.error(
                "request %r: its error could not be sent: %s",
                shown_id(outbox.id),
                type(failure).__name__,
            )
        self._ended(outbox, error.status)

    def _close(self, outbox: Outbox) -> None:
        with outbox.lock:
            outbox.closed = True

    def _ended(self, outbox: Outbox, status: Status | None) -> None:
        """`status` as of Outbox.ended."""
        now, stats = time.monotonic(), self.stats
        outbox.ended(now, status)
        stats.e2e.observe(now - outbox.arrived)
        if outbox.start is not None:
            stats.queue.observe(outbox.start.queue)
            stats.prefill.observe(outbox.start.prefill)
            stats.decode.observe((outbox.last_token_at or now) - outbox.first_token_at)
        if status is None:
            stats.prompt_length.observe(outbox.num_input_tokens)
            stats.output_length.observe(sum(c.stream.num_tokens for c in outbox.choices))
            stats.succeeded(cut=any(c.finish_reason == "length" for c in outbox.choices))
        else:
            stats.errored(status)
        self._on_closed(outbox)

    def _count(self, outbox: Outbox, num_tokens: int) -> None:
        now = time.monotonic()
        self.stats.output_tokens += num_tokens
        if outbox.last_sent is None:
            outbox.first_sent = now
            self.stats.prompt_tokens += outbox.num_input_tokens
        if outbox.request is not None and outbox.request.stream:
            if outbox.last_sent is None:
                self.stats.ttft.observe(now - outbox.arrived)
            elif num_tokens:
                self.stats.inter_token.observe((now - outbox.last_sent) / num_tokens, num_tokens)
        outbox.last_sent = now


def _until_error(
    outputs: list[RequestOutput], request_id: str
) -> tuple[list[RequestOutput], RequestError | None]:
    for position, output in enumerate(outputs):
        if output.error is not None:
            return outputs[:position], _as_exception(output.uid, *output.error, request_id)
    return outputs, None


def _as_exception(uid: int, status: Status, message: str, request_id: str) -> RequestError:
    if status != "INTERNAL":
        return _EXCEPTIONS[status](message)
    # One of this process has been logged, and has its id
    return RequestError(message) if uid == ANY_UID else engine_error(message, request_id)


_EXCEPTIONS: dict[Status, type[RequestError]] = {
    kind.status: kind for kind in (InvalidArgument, Unavailable, Cancelled)
}
