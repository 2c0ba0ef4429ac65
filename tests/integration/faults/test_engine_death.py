"""The engine process is killed: clients hear of it at once, and it comes back."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest
from inferx_client import Delta, InferenceError
from served import Served


@pytest.fixture(autouse=True)
def up_again(mortal: Served) -> object:
    yield
    mortal.wait_for_metric("inferx:engine_up", lambda up: up == 1)


def served_again(mortal: Served) -> str:
    deadline = time.monotonic() + 20
    while True:
        try:
            return mortal.generate("Once", max_tokens=8).text
        except InferenceError as error:
            if "try again shortly" not in error.message or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def read_to_the_end(stream: Iterator[Delta], texts: list[str], index: int) -> None:
    for delta in stream:
        texts[index] += delta.text


def test_a_killed_engine_fails_what_is_in_flight_at_once_and_is_started_again(
    mortal: Served, synthetic: Served
) -> None:
    expected = mortal.generate("Once", max_tokens=200).text
    restarts = mortal.metric("inferx:engine_restarts_total")
    bystander = synthetic.stream("Once", max_tokens=400)
    next(bystander)
    streams = [mortal.stream("Once", max_tokens=4000) for _ in range(4)]
    texts = [next(stream).text for stream in streams]
    waiting = mortal.later("Once", max_tokens=8)  # all places of the batch are taken

    os.kill(mortal.engine_pid(), signal.SIGKILL)
    killed = time.monotonic()
    for index, stream in enumerate(streams):
        with pytest.raises(InferenceError, match="the engine"):
            read_to_the_end(stream, texts, index)
    with pytest.raises(InferenceError, match="the engine"):
        waiting.result()
    assert time.monotonic() - killed < 5, "at once, not at a heartbeat's timeout"
    assert all(expected.startswith(text) for text in texts), "text sent before is in order"

    assert served_again(mortal) == expected[: len(served_again(mortal))]
    mortal.wait_for_metric("inferx:engine_restarts_total", lambda count: count == restarts + 1)
    mortal.wait_for_metric("inferx:engine_up", lambda up: up == 1)
    mortal.wait_until_idle()
    assert next(bystander).text, "other models are unaffected"
    bystander.close()


def test_the_gauge_shows_an_engine_that_is_down(mortal: Served) -> None:
    """A restart is faster than the gauge is written; those after further deaths wait longer."""
    served_again(mortal)
    deadline = time.monotonic() + 30
    while mortal.metric("inferx:engine_up") == 1:
        assert time.monotonic() < deadline, "the gauge stays at 1 whatever happens to the engine"
        with contextlib.suppress(ProcessLookupError):
            os.kill(mortal.engine_pid(), signal.SIGKILL)
        time.sleep(0.1)
    mortal.wait_for_metric("inferx:engine_up", lambda up: up == 1)
    served_again(mortal)
