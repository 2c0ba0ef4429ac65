"""Outbox: what is on its way to one Triton request, from the engine to the response sender."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from inferx.engine.messages import FinishReason, RequestOutput, RequestStart
from inferx.errors import RequestError, Status
from inferx.observe.request_trace import TraceParent
from inferx.text.stream import TextDelta, TextStream
from inferx.triton.pace import StreamPace
from inferx.triton.protocol import GenerateRequest

# Of an error of this process, which ends the whole request. The engine's own uids start at 1
ANY_UID = 0


class Choice:
    """One of the `n` sequences of a request: its text so far, and what of it is yet unsent."""

    __slots__ = (
        "cumulative_logprob",
        "finish_reason",
        "index",
        "logprobs",
        "num_tokens",
        "stream",
        "text",
        "texts",
        "uid",
    )

    def __init__(self, index: int, stream: TextStream, prompt: str) -> None:
        """`prompt` is what the text begins with: empty unless the client wants it repeated."""
        self.index = index
        self.uid = ANY_UID
        self.stream = stream
        self.text = prompt
        self.num_tokens = 0
        self.logprobs: list[bytes] = []  # JSON: objects take 3 times the memory
        self.cumulative_logprob = 0.0
        self.finish_reason: FinishReason | None = None
        self.texts: list[str] | None = None  # everything, for a trace that shows it

    def add(self, delta: TextDelta) -> None:
        self.text += delta.text
        if self.texts is not None:
            self.texts.append(delta.text)
        self.num_tokens += delta.num_tokens
        self.cumulative_logprob = delta.cumulative_logprob or 0.0
        if delta.logprobs:
            self.logprobs += map(msgspec.json.encode, delta.logprobs)
        self.finish_reason = delta.finish_reason

    def sent(self) -> None:
        self.text = ""
        self.num_tokens = 0
        self.logprobs = []


class Outbox:
    """Outputs go in from any thread; one shard takes all there are, and sends them as one response.

    The owner of `closed` is the shard whose turn it is: there is one at a time. `lock` is held
    while `handle` is asked whether the client cancelled, and while `closed` turns true: Triton
    frees what the handle refers to once the final flag is sent.
    """

    __slots__ = (
        "_due",
        "_enqueue",
        "_opened",
        "_pace",
        "_pending",
        "_scheduled",
        "_turn",
        "arrived",
        "choices",
        "closed",
        "deadline",
        "eager",
        "ended_at",
        "first_sent",
        "first_token_at",
        "handle",
        "id",
        "keeps_texts",
        "last_sent",
        "last_token_at",
        "lock",
        "num_input_tokens",
        "request",
        "sender",
        "start",
        "status",
        "trace_parent",
        "traced",
        "uids",
    )

    def __init__(
        self, handle: Any, request_id: str, arrived: float, enqueue: Callable[[Outbox], None]
    ) -> None:
        """`handle` is a pb_utils.InferenceRequest; `enqueue` hands the outbox to the shards."""
        self.handle = handle
        self.sender = handle.get_response_sender()
        self.id = request_id
        self.arrived = arrived  # time.monotonic seconds
        self.deadline = float("inf")  # likewise
        self.first_sent: float | None = None  # likewise
        self.last_sent: float | None = None  # likewise
        self.ended_at = 0.0  # likewise
        self.status: Status | None = None  # of the error that ended it
        self.start: RequestStart | None = None  # of the choice that was first
        self.first_token_at = 0.0  # likewise, once `start` is known
        self.last_token_at: float | None = None  # likewise, once the engine has ended it
        self.traced = False
        self.trace_parent: TraceParent | None = None
        self.keeps_texts = False  # whether the trace shows them
        self.request: GenerateRequest | None = None
        self.choices: list[Choice] = []
        self.num_input_tokens = 0
        self.uids: list[int] = []
        self.eager = True
        self.closed = False
        self.lock = threading.Lock()
        self._opened = False  # outputs may come before the uids are known
        self._scheduled = False  # in the shards' queue, or with a shard
        self._due = False  # a shard has to look, and has not since
        self._turn = threading.Lock()  # guards these two
        self._pending: deque[RequestOutput] = deque()
        self._enqueue = enqueue
        self._pace: StreamPace | None = None

    def prepare(
        self,
        request: GenerateRequest,
        streams: list[TextStream],
        num_input_tokens: int,
        prompt: str,
        pace: StreamPace | None = None,
    ) -> None:
        """What the outbox has to know before the engine's first output. `pace`: of a stream; None:
        none of its tokens waits for others."""
        self.request = request
        self.num_input_tokens = num_input_tokens
        self.choices = [Choice(index, stream, prompt) for index, stream in enumerate(streams)]
        if self.keeps_texts:
            for choice in self.choices:
                choice.texts = []
        # Without a stream and without stop strings nothing has to happen before the end.
        self.eager = request.stream or bool(request.sampling.stop)
        self._pace = pace

    def open(self, uids: list[int]) -> None:
        """From now on the shards are told of outputs; those that have come already are there."""
        self.uids = uids
        for choice, uid in zip(self.choices, uids, strict=True):
            choice.uid = uid
        self._opened = True
        self._schedule()

    def put(self, output: RequestOutput) -> None:
        """The engine client's sink."""
        if output.start is not None and self.start is None:
            self.start, self.first_token_at = output.start, time.monotonic()
        if output.finish_reason is not None:
            self.last_token_at = time.monotonic()
        due = [output] if self._pace is None else self._pace.add(output, time.monotonic())
        self._pending.extend(due)
        if self._opened and due and (self.eager or output.finished):
            self._schedule()

    def fail(self, error: RequestError) -> None:
        """Ends the request with `error`, after all that has been put before."""
        if self._pace is not None:
            self._pending.extend(self._pace.rest())
        self._pending.append(RequestOutput(ANY_UID, [], error=(error.status, str(error))))
        self._schedule()

    def take(self) -> list[RequestOutput]:
        """All outputs there are. For the shard whose turn it is."""
        self._due = False  # first: what comes from here on sets it again
        taken = []
        pending = self._pending
        while pending:
            taken.append(pending.popleft())
        return taken

    def served(self) -> None:
        """The shard's turn is over; what has come meanwhile is for the next one."""
        with self._turn:
            again = self._scheduled = self._due and not self.closed
        if again:
            self._enqueue(self)

    def ended(self, now: float, status: Status | None) -> None:
        """`status` is that of the error that ended the request, None: it succeeded."""
        self.ended_at, self.status = now, status
        if self._pace is not None:
            self._pace.end()

    def _schedule(self) -> None:
        with self._turn:
            self._due = True
            if self._scheduled:
                return
            self._scheduled = True
        self._enqueue(self)

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt, found in the prefix cache; 0 before anything was computed."""
        return self.start.cached_tokens if self.start is not None else 0

    @property
    def finished(self) -> bool:
        return all(choice.finish_reason is not None for choice in self.choices)
