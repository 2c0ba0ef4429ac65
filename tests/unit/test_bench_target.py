"""Whether a load begins: what its target finds out about the server's model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from inferx_client.bench.errors import BenchError
from inferx_client.bench.target import Sending, triton_target
from triton_ports import TritonPorts


@pytest.fixture
def triton() -> Iterator[TritonPorts]:
    with TritonPorts().listening() as ports:
        yield ports


def enter(triton: TritonPorts, model: str, timeout: float = 60.0) -> None:
    async def run() -> None:
        async with triton_target(triton.grpc_url, model, Sending(timeout=timeout)):
            pass

    asyncio.run(run())


def test_a_model_that_is_ready_is_taken(triton: TritonPorts) -> None:
    triton.ready = {"up", "other"}
    enter(triton, "up")


@pytest.mark.parametrize(("ready", "names"), [({"up", "other"}, "other, up"), (set(), "none")])
def test_a_model_that_is_missing_is_named_with_those_that_are_ready(
    triton: TritonPorts, ready: set[str], names: str
) -> None:
    triton.ready = ready
    with pytest.raises(BenchError) as raised:
        enter(triton, "nope")
    assert str(raised.value) == f"the server has no model 'nope' that is ready: it has {names}"


def test_a_server_that_does_not_say_what_it_has_is_not_waited_for(triton: TritonPorts) -> None:
    triton.answers.clear()
    enter(triton, "nope", timeout=0.05)
