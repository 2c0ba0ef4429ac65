"""How the client's requests end where the server does something else than it should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import grpc
import pytest
from inferx_client import AsyncClient, Client, InferenceError, client
from triton_ports import TritonPorts
from tritonclient.grpc import service_pb2


class Leaving(TritonPorts):
    """Answers with an error, and is gone then."""

    def ModelStreamInfer(
        self, requests: Iterator[service_pb2.ModelInferRequest], context: grpc.ServicerContext
    ) -> Iterator[service_pb2.ModelStreamInferResponse]:
        next(requests)
        yield service_pb2.ModelStreamInferResponse(error_message="INVALID_ARG: top_k is 'x'")
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def blocking(url: str) -> None:
    with Client(url, "m") as client:
        client.generate("Once")


def awaited(url: str) -> None:
    async def run() -> None:
        async with AsyncClient(url, "m") as client:
            await client.generate("Once")

    asyncio.run(run())


@pytest.mark.parametrize("ask", [blocking, awaited])
def test_the_error_that_a_server_has_sent_counts_though_it_goes_then(
    ask: Callable[[str], None],
) -> None:
    with Leaving().listening() as server, pytest.raises(InferenceError) as error:
        ask(server.grpc_url)
    assert str(error.value) == "INVALID_ARG: top_k is 'x'"


def asked(url: str) -> bool:
    with Client(url, "m") as asking:
        with pytest.raises(InferenceError, match="CANCELLED"):
            asking.ready_models()
        return asking.is_ready()


def asked_by_a_task(url: str) -> bool:
    async def run() -> bool:
        async with AsyncClient(url, "m") as asking:
            with pytest.raises(InferenceError, match="CANCELLED"):
                await asking.ready_models()
            return await asking.is_ready()

    return asyncio.run(run())


@pytest.mark.parametrize("ask", [asked, asked_by_a_task])
def test_a_server_that_says_nothing_of_its_models_has_none_that_is_ready(
    ask: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stopped keeps its connections."""
    monkeypatch.setattr(client, "ANSWER_TIMEOUT", 0.1)
    with TritonPorts().listening() as server:
        server.ready.add("m")
        server.answers.clear()
        assert not ask(server.grpc_url)
