"""What the endpoint asks Triton for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from inferx.entrypoints.openai.backlog import Backlog
from inferx.entrypoints.openai.generation import Generation
from inferx.entrypoints.openai.reading import Reading
from inferx_client import AsyncClient, InferenceError
from triton_ports import TritonPorts
from tritonclient.grpc import service_pb2


class Asked(TritonPorts):
    """Refuses requests, and keeps their sampling parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.sampling: list[dict[str, Any]] = []

    def ModelStreamInfer(
        self, requests: Iterator[service_pb2.ModelInferRequest], context: grpc.ServicerContext
    ) -> None:
        request = next(requests)
        place = [tensor.name for tensor in request.inputs].index("sampling_parameters")
        self.sampling.append(json.loads(request.raw_input_contents[place][4:]))  # after its length
        context.abort(grpc.StatusCode.UNAVAILABLE, "it only listens")


@pytest.mark.parametrize(
    ("is_stream", "told"),
    [(True, [{"top_k": 3, "read_time": 100}]), (False, [{"top_k": 3}])],
)
def test_a_stream_s_request_tells_how_fast_it_is_read(
    is_stream: bool, told: list[dict[str, Any]]
) -> None:
    """100 microseconds on an idle machine."""

    async def run(url: str) -> None:
        async with AsyncClient(url, "m") as client:
            generation = Generation(client, ["Once"], {"top_k": 3}, Reading(), request_id="r")
            if not is_stream:
                await generation.whole()
            backlog = Backlog(limit=1000)
            await generation.stream(backlog)
            backlog.take()

    with Asked().listening() as triton:
        assert isinstance(triton, Asked)
        with pytest.raises(InferenceError):
            asyncio.run(run(triton.grpc_url))
        assert triton.sampling == told
