"""Pace: which tokens of a stream wait for the next ones, so that fewer responses are sent."""

from __future__ import annotations

import threading

from inferx.engine.messages import RequestOutput


class Pace:
    """Of all streams of a model.

    Each choice has a response when its first token comes, then one for `stream_interval` tokens,
    then one at its end.

    Streams whose requests say a `read_time` share a reader, which takes that many seconds for a
    response, and get no more of them than it can read: of C choices each has one in C read times.
    As long as the reader keeps up that is less than a step takes, and every token goes out alone.
    What other streams say of their reader has no part in it.
    """

    def __init__(self, stream_interval: int) -> None:
        self.stream_interval = stream_interval
        self.num_read = 0  # choices that have begun, of the streams with a reader that go on
        self._lock = threading.Lock()

    def stream(self, read_time: float | None) -> StreamPace | None:
        """For a request's choices; `read_time` in seconds. None: no token waits."""
        if read_time is None and self.stream_interval == 1:
            return None
        return StreamPace(self, read_time)

    def count(self, change: int) -> None:
        """Of choices that are read."""
        with self._lock:
            self.num_read += change


class StreamPace:
    """One request's: holds tokens of each choice until they are due. For any thread."""

    __slots__ = ("_due_at", "_ended", "_held", "_lock", "_pace", "_read_time")

    def __init__(self, pace: Pace, read_time: float | None) -> None:
        self._pace = pace
        self._read_time = read_time
        self._due_at: dict[int, float] = {}  # by uid, the last time
        self._held: dict[int, list[RequestOutput]] = {}  # by uid, what has come since
        self._ended = False
        self._lock = threading.Lock()

    def add(self, output: RequestOutput, now: float) -> list[RequestOutput]:
        """What of the output's choice is due now, which is in seconds: all there is, or nothing.
        With an error, which ends the request, all is due.

        The gap runs from when tokens were due: how long sending takes is no matter of it. It needs
        no timer, as tokens that are held are due with a later one of their choice.
        """
        with self._lock:
            if output.error is not None:
                return [*self._taken(), output]
            uid = output.uid
            held = self._held.setdefault(uid, [])
            held.append(output)
            if uid not in self._due_at:
                self._begin()
            elif not output.finished and not self._is_due(held, now - self._due_at[uid]):
                return []
            self._due_at[uid] = now
            return self._held.pop(uid)

    def rest(self) -> list[RequestOutput]:
        """All that is held."""
        with self._lock:
            return self._taken()

    def end(self) -> None:
        """The stream has ended, though outputs may still come."""
        with self._lock:
            if self._read_time is not None and not self._ended:
                self._pace.count(-len(self._due_at))
            self._ended = True

    def _begin(self) -> None:
        if self._read_time is not None and not self._ended:
            self._pace.count(1)

    def _taken(self) -> list[RequestOutput]:
        held = [output for outputs in self._held.values() for output in outputs]
        self._held.clear()
        return held

    def _is_due(self, held: list[RequestOutput], waited: float) -> bool:
        if self._read_time is not None and waited < self._pace.num_read * self._read_time:
            return False
        return sum(len(output.token_ids) for output in held) >= self._pace.stream_interval
