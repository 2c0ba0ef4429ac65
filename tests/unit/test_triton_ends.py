"""How requests end early: deadlines, cancellation, and a model that is unloaded."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from inferx.errors import RequestError, Unavailable
from inferx.triton import cancellation
from inferx.triton.cancellation import POLLS_A_TICK, TICK, Canceller
from inferx.triton.inflight import InFlight
from inferx.triton.lifecycle import BUSY_INTERVAL, IDLE_INTERVAL, Lifecycle
from inferx.triton.outbox import Outbox
from triton_double import Request


class Ends:
    """Outboxes whose `fail` is noted, as the shards would see it."""

    def __init__(self) -> None:
        self.aborted: list[int] = []
        self.errors: dict[str, tuple[str, str]] = {}
        self.changed = threading.Condition()

    def outbox(self, name: str, request: Request | None = None, *, seconds: float = 1e9) -> Outbox:
        ends = self

        class Noted(Outbox):
            __slots__ = ()

            def fail(self, error: RequestError) -> None:
                with self.lock:
                    self.closed = True
                    self.sender.closed = True
                with ends.changed:
                    ends.errors[name] = (error.status, str(error))
                    ends.changed.notify_all()

        outbox = Noted(request or Request(), name, time.monotonic(), lambda outbox: None)
        outbox.deadline = outbox.arrived + seconds
        outbox.uids = [len(name)]
        return outbox

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 10)


@pytest.mark.parametrize("names", [("patient", "late"), ("late", "patient")])
def test_a_deadline_that_passes_cancels_the_request_and_frees_its_sequences(
    names: tuple[str, str],
) -> None:
    ends = Ends()
    canceller = Canceller(ends.aborted.extend)
    for name in names:
        canceller.watch(ends.outbox(name, seconds=0.05 if name == "late" else 1e9))
    ends.wait(lambda: "late" in ends.errors)
    assert canceller.close(10)
    assert ends.errors == {"late": ("CANCELLED", "the deadline of 0.05 s passed")}
    assert ends.aborted == [len("late")]


def test_deadlines_are_kept_in_whatever_order_they_come() -> None:
    ends = Ends()
    canceller = Canceller(ends.aborted.extend)
    names = [f"{seconds:.2f}" for seconds in (0.09, 0.01, 0.05, 0.03, 0.07)]
    for name in names:
        canceller.watch(ends.outbox(name, seconds=float(name)))
    ends.wait(lambda: len(ends.errors) == 5)
    assert canceller.close(10)
    assert set(ends.errors) == set(names)


def test_a_client_that_cancels_is_noticed_among_many() -> None:
    ends = Ends()
    canceller = Canceller(ends.aborted.extend)
    requests = [Request() for _ in range(10 * POLLS_A_TICK)]
    for index, request in enumerate(requests):
        canceller.watch(ends.outbox(str(index), request))
    requests[57].cancelled = True
    ends.wait(lambda: bool(ends.errors))
    assert canceller.close(10)
    assert ends.errors == {"57": ("CANCELLED", "the client cancelled the request")}


def test_polls_are_bounded_and_end_with_the_request() -> None:
    polls = []

    class Polled(Request):
        def is_cancelled(self) -> bool:
            polls.append(time.monotonic())
            return super().is_cancelled()  # asserts that it is not asked after the end

    ends = Ends()
    canceller = Canceller(ends.aborted.extend)
    outboxes = [ends.outbox(str(index), Polled()) for index in range(3 * POLLS_A_TICK)]
    for outbox in outboxes:
        canceller.watch(outbox)
    until(lambda: len(polls) > 4 * POLLS_A_TICK)
    for outbox in outboxes:
        outbox.fail(Unavailable("the end"))
    assert canceller.close(10)
    assert len(polls) <= POLLS_A_TICK * (1 + (polls[-1] - polls[0]) / TICK)


def test_requests_that_have_ended_are_let_go_in_one_turn_however_many_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else more of them than POLLS_A_TICK a tick would pile up, and keep others from their poll."""
    turns, seen = itertools.count(), {"before": -1, "behind": -1}
    turn = 0

    def monotonic() -> float:  # once a turn
        nonlocal turn
        turn = next(turns)
        return 0.0

    class Seen(Request):
        def __init__(self, place: str) -> None:
            super().__init__()
            self.place = place

        def is_cancelled(self) -> bool:
            if seen["behind"] < 0:
                seen[self.place] = turn
            return False

    ends = Ends()
    ended = [ends.outbox("ended") for _ in range(50 * POLLS_A_TICK)]
    for outbox in ended:
        outbox.closed = True
    monkeypatch.setattr(cancellation, "time", SimpleNamespace(monotonic=monotonic))
    canceller = Canceller(ends.aborted.extend)
    for outbox in (
        ends.outbox("before", Seen("before")), *ended, ends.outbox("behind", Seen("behind"))
    ):  # fmt: skip
        canceller.watch(outbox)
    until(lambda: seen["behind"] >= 0)
    assert canceller.close(10)
    assert seen["before"] == seen["behind"]


def test_a_poll_that_fails_leaves_the_request_its_deadline() -> None:
    class Unwell(Request):
        def is_cancelled(self) -> bool:
            raise RuntimeError("shared memory is full")

    ends = Ends()
    canceller = Canceller(ends.aborted.extend)
    canceller.watch(ends.outbox("late", Unwell(), seconds=0.2))
    ends.wait(lambda: "late" in ends.errors)
    assert canceller.close(10)
    assert ends.errors == {"late": ("CANCELLED", "the deadline of 0.2 s passed")}


class Engine:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def drain(self) -> None:
        self.calls.append("drain")

    def abort(self, uids: list[int]) -> None:
        self.calls.append(f"abort {uids}")

    def close(self, timeout: float) -> None:
        self.calls.append("close")


class Readiness:
    """Served until `end` is called."""

    def __init__(self) -> None:
        self.served = True
        self.fails = False
        self.asked: list[bool] = []  # busy

    def is_served(self, *, busy: bool) -> bool:
        self.asked.append(busy)
        if self.fails:
            raise RuntimeError("the server is shutting down")
        return self.served


class Looked(InFlight):
    """Counts how often the watchdog has looked."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def sample(self) -> Outbox | None:
        self.looks += 1
        return super().sample()


def lifecycle(drain_timeout: float) -> tuple[Lifecycle, Engine, Looked, Readiness]:
    engine, in_flight, readiness = Engine(), Looked(), Readiness()
    return Lifecycle(engine, in_flight, readiness, drain_timeout), engine, in_flight, readiness


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_before_the_first_request_the_server_is_not_asked() -> None:
    watch, engine, in_flight, readiness = lifecycle(1)
    readiness.served = False
    until(lambda: in_flight.looks > 2 * IDLE_INTERVAL / BUSY_INTERVAL)
    assert engine.calls == []
    watch.finish()
    assert readiness.asked == []
    assert engine.calls == ["drain", "close"]


def test_an_unload_waits_for_requests_in_flight_and_then_ends_the_engine() -> None:
    watch, engine, in_flight, readiness = lifecycle(60)
    outbox = Ends().outbox("one")
    in_flight.add(outbox)
    readiness.served = False
    until(lambda: engine.calls == ["drain"])
    in_flight.remove(outbox)
    until(lambda: engine.calls == ["drain", "close"])
    assert readiness.asked == [True]
    assert watch.draining


def test_requests_that_outlast_the_drain_are_cancelled_with_unavailable() -> None:
    _, engine, in_flight, readiness = lifecycle(0.2)
    ends = Ends()
    in_flight.add(ends.outbox("seven"))
    readiness.served = False
    until(lambda: engine.calls == ["drain", "abort [5]", "close"])
    assert ends.errors == {
        "seven": (
            "UNAVAILABLE",
            "the model is being unloaded and could not finish this request",
        )
    }


def test_while_nothing_is_in_flight_an_unload_is_noticed_too() -> None:
    _, engine, in_flight, readiness = lifecycle(60)
    outbox = Ends().outbox("one")
    in_flight.add(outbox)
    in_flight.remove(outbox)
    readiness.served = False
    until(lambda: engine.calls == ["drain", "close"])
    assert readiness.asked == [False]


def test_a_server_that_cannot_say_whether_it_serves_the_model_is_shutting_down() -> None:
    _, engine, in_flight, readiness = lifecycle(60)
    outbox = Ends().outbox("one")
    in_flight.add(outbox)
    in_flight.remove(outbox)
    readiness.fails = True
    until(lambda: engine.calls == ["drain", "close"])


def test_finalize_ends_a_drain_at_once() -> None:
    watch, engine, in_flight, readiness = lifecycle(60)
    in_flight.add(Ends().outbox("one"))
    readiness.served = False
    until(lambda: engine.calls == ["drain"])
    watch.finish()
    assert engine.calls == ["drain", "close"]
