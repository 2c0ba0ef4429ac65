"""EngineClient: the parent's side of the engine. Requests go in, each one's outputs come back."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable

from inferx.config import EngineConfig
from inferx.engine.limits import check_request
from inferx.engine.messages import (
    AbortRequests,
    AddRequests,
    EngineInfo,
    EngineRequest,
    EngineStats,
    RequestOutput,
)
from inferx.engine.sampling import SamplingParams
from inferx.engine.supervisor import State, Supervisor
from inferx.errors import InvalidArgument, Unavailable

logger = logging.getLogger(__name__)

Sink = Callable[[RequestOutput], None]

_CUT_OFF = {
    State.RESTARTING: "the engine process ended unexpectedly while it worked on this request; "
    "it is being restarted: try again shortly",
    State.DOWN: "the engine process ended unexpectedly while it worked on this request "
    "and will not be restarted; the server's log says why",
    State.CLOSED: "the model was unloaded before this request had finished",
}


class EngineClient:
    """Every method may be called from any thread, except `close` from within a sink."""

    def __init__(self, config: EngineConfig) -> None:
        """`config.model` and `config.tokenizer` are absolute paths. Starts nothing."""
        self._config = config
        self._supervisor = Supervisor(config, self._dispatch, self._cut_off)
        self._lock = threading.Lock()  # one submission, abort, or loss of the engine at a time
        self._sinks: dict[int, Sink] = {}  # by uid: the requests in flight
        self._uids = itertools.count(1)
        self._draining = False

    def start(self) -> EngineInfo:
        """Spawns the engine process and waits until it has loaded the model. Once only.

        Raises ModelLoadError with the engine's one sentence.
        """
        return self._supervisor.start()

    @property
    def info(self) -> EngineInfo:
        """Raises Unavailable before `start` has returned."""
        if self._supervisor.info is None:
            raise Unavailable(self._supervisor.state.value)
        return self._supervisor.info

    @property
    def is_up(self) -> bool:
        return self._supervisor.state is State.UP

    @property
    def stats(self) -> EngineStats:
        """As of the last heartbeat; counters are those of all engine processes so far."""
        return self._supervisor.stats

    @property
    def num_restarts(self) -> int:
        return self._supervisor.num_restarts

    @property
    def num_in_flight(self) -> int:
        return len(self._sinks)

    def submit(
        self, prompt_token_ids: list[int], params: list[SamplingParams], on_output: Sink
    ) -> list[int]:
        """Sends a prompt with one SamplingParams a choice; returns a uid for each of them.

        `on_output` gets every choice's outputs, in order, in the client's own thread, and must be
        quick. Exactly one output of each uid is its last (`finished`), unless it is aborted. The
        first one may come before this method returns.

        Raises InvalidArgument for what can never be served; Unavailable while the queue is full,
        and while the engine drains, restarts or is down.
        """
        check_request(prompt_token_ids, params, self.info)
        with self._lock:
            self._refuse_beyond_limits(len(params))
            requests = [EngineRequest(next(self._uids), prompt_token_ids, p) for p in params]
            uids = [request.uid for request in requests]
            self._sinks.update(dict.fromkeys(uids, on_output))
            try:
                self._supervisor.send(AddRequests(requests))
            except BaseException:
                self._forget(uids)
                raise
        return uids

    def abort(self, uids: list[int]) -> None:
        """Ends requests at once and without a further output; those that have ended are ignored."""
        if not uids:
            return
        with self._lock:  # a loss of the engine goes through them
            self._forget(uids)
        with contextlib.suppress(Unavailable):  # an engine that knew them is gone
            self._supervisor.send(AbortRequests(uids))

    def drain(self) -> None:
        """From now on new requests are refused; those in flight go on."""
        self._draining = True

    def close(self, timeout: float) -> None:
        """Ends the engine process, by force after `timeout` seconds, and every request in flight.

        May be called in any state, and again.
        """
        self._draining = True
        self._supervisor.close(timeout)

    def _refuse_beyond_limits(self, num_choices: int) -> None:
        if self._draining:
            raise Unavailable("the model is being unloaded and takes no new requests")
        limit = self._config.max_in_flight
        if num_choices > limit:
            raise InvalidArgument(
                f"n is {num_choices}: this server takes at most {limit} sequences at once "
                "(max_num_seqs + max_queue_size); ask for fewer"
            )
        if len(self._sinks) + num_choices > limit:
            raise Unavailable(
                f"the queue is full: {len(self._sinks)} sequences are in flight and {num_choices} "
                f"more would exceed {limit} (max_num_seqs + max_queue_size); try again later"
            )

    def _forget(self, uids: list[int]) -> None:
        for uid in uids:
            self._sinks.pop(uid, None)

    # Called by the supervisor's thread

    def _dispatch(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            if output.finished:
                sink = self._sinks.pop(output.uid, None)
            else:
                sink = self._sinks.get(output.uid)
            if sink is not None:
                _deliver(sink, output)

    def _cut_off(self, state: State) -> None:
        """Ends all requests in flight: no more outputs of theirs will come."""
        with self._lock:
            sinks, self._sinks = self._sinks, {}
        for uid, sink in sinks.items():
            _deliver(sink, RequestOutput(uid, [], error=("UNAVAILABLE", _CUT_OFF[state])))


def _deliver(sink: Sink, output: RequestOutput) -> None:
    try:
        sink(output)
    except Exception:
        logger.exception("a request's sink failed")
