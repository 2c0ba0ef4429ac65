"""What the endpoint says of its pace: measured while it has much to read, else that of an idle
machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from inferx.entrypoints.openai import reading
from inferx.entrypoints.openai.reading import (
    IDLE_SECONDS,
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    Reading,
    _busy_seconds,
)


class Machine:
    """A clock, and a thread's busy time."""

    def __init__(self) -> None:
        self.now = self.busy = 0.0
        self.reading = Reading(lambda: self.now, lambda: self.busy)

    def read(self, responses: int, seconds: float, busy: float) -> float:
        """The time for a response, in seconds, that is said after these."""
        for _ in range(responses):
            self.reading.count()
        self.now += seconds
        self.busy += busy
        return self.reading.time_for_each() * 0.75


def test_it_begins_with_an_idle_machine_s() -> None:
    assert Reading().time_for_each() == IDLE_SECONDS / 0.75


def test_it_comes_close_to_what_a_response_takes() -> None:
    machine = Machine()
    assert machine.read(1000, 0.5, 0.275) == pytest.approx((75e-6 + 275e-6) / 2)
    assert machine.read(1000, 0.5, 0.275) == pytest.approx((175e-6 + 275e-6) / 2)
    for _ in range(20):
        said = machine.read(1000, 0.5, 0.275)
    assert said == pytest.approx(275e-6, rel=1e-5)


def test_a_measurement_takes_a_while() -> None:
    machine = Machine()
    assert machine.read(200, 0.1, 0.1) == pytest.approx(75e-6)
    assert machine.read(200, 0.1, 0.0) == pytest.approx(75e-6)
    assert machine.read(100, 0.05, 0.0375) == pytest.approx((75e-6 + 275e-6) / 2)


def test_few_responses_say_nothing() -> None:
    machine = Machine()
    machine.read(1000, 0.5, 0.5)
    assert machine.read(499, 0.5, 0.5) == pytest.approx(75e-6)


@pytest.mark.parametrize(("busy", "bound"), [(1.0, LONGEST_SECONDS), (0.0, SHORTEST_SECONDS)])
def test_it_has_bounds_that_triton_takes(busy: float, bound: float) -> None:
    machine = Machine()
    for _ in range(30):
        said = machine.read(1000, 1.0, busy)
    assert said == pytest.approx(bound)
    assert 1 <= round(machine.reading.time_for_each() * 1e6) <= 1000  # the parameter read_time


@pytest.mark.parametrize("content", [None, "0 0 0\n"])
def test_without_scheduling_statistics_a_thread_s_own_time_counts(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = tmp_path / "schedstat"
    if content is not None:
        statistics.write_text(content)
    monkeypatch.setattr(reading, "_STATISTICS", statistics)
    before = time.thread_time()
    assert before <= _busy_seconds() <= time.thread_time()


def test_the_thread_s_work_counts_as_busy() -> None:
    before, own = _busy_seconds(), time.thread_time()
    while time.thread_time() - own < 0.1:
        pass
    assert _busy_seconds() - before >= 0.05  # the kernel counts by its ticks
