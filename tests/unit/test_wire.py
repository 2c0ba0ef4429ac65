from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from inferx.engine.messages import (
    AddRequests,
    EngineRequest,
    EngineStats,
    Ping,
    Pong,
    RequestOutput,
    StepOutputs,
)
from inferx.engine.plan import TokenLogprobs
from inferx.engine.sampling import SamplingParams
from inferx.engine.wire import engine_wire, parent_wire, private_directory


@pytest.fixture
def directory():
    with private_directory() as name:
        yield name


@pytest.fixture
def wires(directory):
    parent, engine = parent_wire(directory), engine_wire(directory)
    yield parent, engine
    parent.close()
    engine.close()


def test_messages_arrive_equal_and_in_order_both_ways(wires):
    parent, engine = wires
    params = SamplingParams(max_tokens=3, logit_bias={7: -1.5}, stop=("a",), seed=-(2**63))
    request = EngineRequest(1, [1, 2**31], params)
    parent.send(AddRequests([request]))
    parent.send(Ping(5))
    assert engine.receive() == AddRequests([request])
    assert engine.receive() == Ping(5)

    outputs = StepOutputs([RequestOutput(1, [9], "stop", 9, [TokenLogprobs(-0.5, 1, [9], [-0.5])])])
    engine.send(outputs)
    engine.send(Pong(5, EngineStats(running=1)))
    assert parent.receive() == outputs
    assert parent.receive() == Pong(5, EngineStats(running=1))


def test_nothing_arrived_drains_to_nothing(wires):
    parent, _ = wires
    assert parent.drain() == []


def test_sending_does_not_wait_for_the_other_side_to_exist_or_to_receive(directory):
    parent = parent_wire(directory)
    for number in range(20_000):
        parent.send(Ping(number))
    engine = engine_wire(directory)
    assert [engine.receive().number for _ in range(20_000)] == list(range(20_000))
    parent.close()
    engine.close()


def test_connections_outlive_the_directory(directory):
    parent, engine = parent_wire(directory), engine_wire(directory)
    parent.send(Ping(1))
    engine.send(Pong(1, EngineStats()))
    engine.receive(), parent.receive()
    for name in os.listdir(directory):
        Path(directory, name).unlink()
    parent.send(Ping(2))
    engine.send(Pong(2, EngineStats()))
    assert engine.receive() == Ping(2)
    assert parent.receive() == Pong(2, EngineStats())
    parent.close()
    engine.close()


def test_only_the_user_enters_the_directory(directory):
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700


def test_a_long_temporary_directory_is_passed_over(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with private_directory() as name:
        assert not name.startswith(str(deep))
        parent_wire(name).close()


def test_without_any_place_the_error_names_the_places(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(OSError, match="/dev/shm"):
        private_directory()
