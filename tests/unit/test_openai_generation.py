"""What the endpoint asks Triton for."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import grpc
import pytest
from inferx.entrypoints.openai.backlog import Backlog, Part
from inferx.entrypoints.openai.generation import Generation, Usage
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


def response(
    text: str, *, counts: tuple[int, int, int | None] | None = None
) -> service_pb2.ModelStreamInferResponse:
    """`counts`: tokens of the prompt, of this response, and of the prompt in the cache."""
    made = service_pb2.ModelStreamInferResponse()

    def add(name: str, kind: str, raw: bytes) -> None:
        made.infer_response.outputs.add(name=name, datatype=kind)
        made.infer_response.raw_output_contents.append(raw)

    add("text_output", "BYTES", struct.pack("<I", len(text)) + text.encode())
    for name, count in zip(("input", "output", "cached"), counts or (), strict=False):
        if count is not None:
            add(f"num_{name}_tokens", "UINT32", struct.pack("<I", count))
    return made


class Counting(TritonPorts):
    """Says two parts, and what they count."""

    def ModelStreamInfer(
        self, requests: Iterator[service_pb2.ModelInferRequest], context: grpc.ServicerContext
    ) -> Iterator[service_pb2.ModelStreamInferResponse]:
        next(requests)
        yield response("a", counts=(10, 3, 8))
        yield response("b", counts=(10, 4, None))


def test_the_usage_is_of_all_prompts_and_counts_each_prompt_once() -> None:
    async def run(url: str) -> Usage:
        async with AsyncClient(url, "m") as client:
            generation = Generation(client, ["x", "y"], {}, Reading(), request_id="r")
            backlog = Backlog(limit=1000)
            await generation.stream(backlog)
            parts = sorted(backlog.take(), key=attrgetter("choice"))  # either prompt may be first
            assert parts == [Part(0, "ab"), Part(1, "ab")]
            return generation.usage

    with Counting().listening() as triton:
        assert asyncio.run(run(triton.grpc_url)) == Usage(20, 16, 14)


class FailingOrWaiting(TritonPorts):
    """Refuses one prompt; for the other one it says a part, and no more until it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Event()
        self.cancelled = threading.Event()

    def ModelStreamInfer(
        self, requests: Iterator[service_pb2.ModelInferRequest], context: grpc.ServicerContext
    ) -> Iterator[service_pb2.ModelStreamInferResponse]:
        request = next(requests)
        if request.raw_input_contents[0].endswith(b"refused"):
            assert self.said.wait(10)
            yield service_pb2.ModelStreamInferResponse(error_message="INVALID_ARG: no")
            return
        assert context.add_callback(self.cancelled.set)
        yield response("a")
        self.said.set()
        self.cancelled.wait(10)


@pytest.mark.parametrize("is_stream", [True, False])
def test_where_one_prompt_fails_the_others_are_cancelled(is_stream: bool) -> None:
    async def run(url: str) -> None:
        async with AsyncClient(url, "m") as client:
            generation = Generation(client, ["x", "refused"], {}, Reading(), request_id="r")
            if not is_stream:
                await generation.whole()
            backlog = Backlog(limit=1000)
            await generation.stream(backlog)
            backlog.take()
            backlog.take()

    with FailingOrWaiting().listening() as triton:
        assert isinstance(triton, FailingOrWaiting)
        with pytest.raises(InferenceError, match="INVALID_ARG: no"):
            asyncio.run(asyncio.wait_for(run(triton.grpc_url), 8))
        assert triton.cancelled.wait(8)


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
