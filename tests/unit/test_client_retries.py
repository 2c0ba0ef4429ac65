"""Which of its requests the client sends again, how often, and how long it waits before."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator

import grpc
import pytest
from inferx_client import AsyncClient, Client, InferenceError, client
from triton_ports import TritonPorts
from tritonclient.grpc import service_pb2

Response = service_pb2.ModelStreamInferResponse
FULL = "UNAVAILABLE: the queue is full"
WRONG = "INVALID_ARG: top_k is 'x'"


def text() -> Response:
    made = Response()
    made.infer_response.outputs.add(name="text_output", datatype="BYTES")
    made.infer_response.raw_output_contents.append(struct.pack("<I", 1) + b"a")
    return made


class Scripted(TritonPorts):
    """Answers each try with the next of the answers: a text, an error, or a text and an error."""

    def __init__(self, answers: list[list[str]]) -> None:
        super().__init__()
        self.answers_left = answers
        self.tries = 0

    def ModelStreamInfer(
        self, requests: Iterator[service_pb2.ModelInferRequest], context: grpc.ServicerContext
    ) -> Iterator[Response]:
        next(requests)
        self.tries += 1
        for part in self.answers_left.pop(0):
            yield text() if part == "text" else Response(error_message=part)


def blocking(url: str, retries: int) -> str:
    with Client(url, "m", retries=retries) as asking:
        return asking.generate("Once").text


def awaited(url: str, retries: int) -> str:
    async def run() -> str:
        async with AsyncClient(url, "m", retries=retries) as asking:
            return (await asking.generate("Once")).text

    return asyncio.run(run())


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The bounds that each wait was drawn from; none is waited."""
    drawn: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return 0.0

    monkeypatch.setattr(client.random, "uniform", uniform)
    return drawn


@pytest.mark.parametrize("ask", [blocking, awaited])
@pytest.mark.parametrize(
    ("answers", "retries", "tries", "error"),
    [
        ([["text"]], 5, 1, None),
        ([[FULL], [FULL], ["text"]], 2, 3, None),
        ([[FULL], [FULL], ["text"]], 1, 2, FULL),
        ([[FULL], ["text"]], 0, 1, FULL),
        ([[FULL], [WRONG], ["text"]], 5, 2, WRONG),
        ([["text", FULL], ["text"]], 5, 1, FULL),  # what has come cannot be taken back
    ],
)
def test_a_request_is_sent_again_while_nothing_of_its_answer_has_come(
    ask: Callable[[str, int], str],
    answers: list[list[str]],
    retries: int,
    tries: int,
    error: str | None,
    waits: list[tuple[float, float]],
) -> None:
    with Scripted(list(answers)).listening() as server:
        assert isinstance(server, Scripted)
        if error is None:
            assert ask(server.grpc_url, retries) == "a"
        else:
            with pytest.raises(InferenceError) as raised:
                ask(server.grpc_url, retries)
            assert str(raised.value) == error
        assert server.tries == tries


def test_each_wait_may_be_twice_as_long_up_to_a_longest_one(
    waits: list[tuple[float, float]],
) -> None:
    with Scripted([*[[FULL]] * 7, ["text"]]).listening() as server:
        assert blocking(server.grpc_url, 7) == "a"
    longest = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert waits == [(one / 2, one) for one in longest]
