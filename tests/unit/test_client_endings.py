"""How the client's requests end where the server does something else than it should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import grpc
import pytest
from inferx_client import AsyncClient, Client, InferenceError
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
