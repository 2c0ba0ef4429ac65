"""What the endpoint asks Triton for."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from inferx.entrypoints.openai.backlog import Backlog, Part
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


class Failing(TritonPorts):
    """Says a part of a text, then an error."""

    def ModelStreamInfer(
        self, requests: Iterator[service_pb2.ModelInferRequest], context: grpc.ServicerContext
    ) -> Iterator[service_pb2.ModelStreamInferResponse]:
        next(requests)
        text = service_pb2.ModelStreamInferResponse()
        text.infer_response.outputs.add(name="text_output", datatype="BYTES")
        text.infer_response.raw_output_contents.append(struct.pack("<I", 4) + b"Once")
        yield text
        yield service_pb2.ModelStreamInferResponse(error_message="UNAVAILABLE: it restarts")


def test_an_error_comes_after_the_text_before_it() -> None:
    async def run(url: str) -> tuple[list[Part], str]:
        async with AsyncClient(url, "m") as client:
            generation = Generation(client, ["x"], {}, Reading(), request_id="r")
            backlog = Backlog(limit=1000)
            await generation.stream(backlog)
            await backlog.filled()
            parts = backlog.take()
            await backlog.filled()
            with pytest.raises(InferenceError) as error:
                backlog.take()
            return parts, str(error.value)

    with Failing().listening() as triton:
        found = asyncio.run(run(triton.grpc_url))
    assert found == ([Part(0, "Once")], "UNAVAILABLE: it restarts")
