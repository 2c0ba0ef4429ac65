"""Where requests go: Triton's gRPC endpoint, or an OpenAI-compatible one (openai_target.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from inferx_client.bench.errors import BenchError
from inferx_client.bench.prompts import Request
from inferx_client.client import AsyncClient
from inferx_client.wire import DEFAULT_DETAILS, InferenceError

MISSING_CONFIDENCE = "no confidence"


class Part(NamedTuple):
    """What a response brought. `total_tokens`: of the whole answer, from a server that does not
    count each response; `tokens` is then 1 where there is text.
    """

    tokens: int
    input_tokens: int | None = None
    total_tokens: int | None = None


class RequestFailed(Exception):
    """`kind`: what the errors are counted by, such as a Triton status or "HTTP 429"."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(message or kind)
        self.kind = kind


@dataclass(frozen=True)
class Sending:
    """What all requests of a run have in common. `timeout`: seconds of a request."""

    temperature: float = 0.0
    ignore_eos: bool = True  # so that every answer has the length that was asked for
    confidence: bool = False  # an answer without the probability of its tokens is an error
    timeout: float = 600.0


class Target(Protocol):
    """One connection; used within one event loop."""

    def parts(self, request: Request) -> AsyncGenerator[Part, None]:
        """The responses to one streaming request as they come. Raises RequestFailed."""
        ...


@asynccontextmanager
async def triton_target(url: str, model: str, sending: Sending) -> AsyncIterator[TritonTarget]:
    """`url`: host:port of Triton's gRPC endpoint. Raises BenchError where the model is missing."""
    async with AsyncClient(url, model) as client:
        await _require_model(client, sending.timeout)
        yield TritonTarget(client, sending)


async def _require_model(client: AsyncClient, timeout: float) -> None:
    try:
        names = await asyncio.wait_for(client.ready_models(), timeout)
    except (InferenceError, asyncio.TimeoutError):
        return  # a server that is away, lists nothing, or is silent: the requests will show it
    if client.model not in names:
        raise BenchError(
            f"the server has no model {client.model!r} that is ready: it has "
            f"{', '.join(names) or 'none'}"
        )


class TritonTarget:
    """InferX, or any model with the tensors of Triton's vLLM backend."""

    def __init__(self, client: AsyncClient, sending: Sending) -> None:
        self._client, self._sending = client, sending

    async def parts(self, request: Request) -> AsyncGenerator[Part, None]:
        sending = self._sending
        details = [*DEFAULT_DETAILS, *(["cumulative_logprob"] if sending.confidence else [])]
        confidence = None
        try:
            async for delta in self._client.stream(
                request.prompt,
                max_tokens=request.output_tokens,
                temperature=sending.temperature,
                ignore_eos=sending.ignore_eos,
                timeout=sending.timeout,
                details=details,
            ):
                if delta.cumulative_logprob is not None:
                    confidence = delta.cumulative_logprob
                yield Part(delta.num_output_tokens or 0, delta.num_input_tokens)
        except InferenceError as error:
            raise RequestFailed(error.status, error.message) from None
        if sending.confidence and (confidence is None or not confidence <= 0):
            raise RequestFailed(MISSING_CONFIDENCE, "the answer has no probability of 0 to 1")
