"""Client and AsyncClient: a request is one gRPC stream, so cancelling it cancels nothing else."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inferx_client.wire import Completion, Delta, InferenceError, deltas, generate_request

_LARGE = 2**31 - 1
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", _LARGE),
    ("grpc.max_receive_message_length", _LARGE),
]
# gRPC's own retries hold 7 KB for each stream that is open, and repeat none that has begun
_ASYNC_CHANNEL_OPTIONS = [*_CHANNEL_OPTIONS, ("grpc.enable_retries", 0)]
_STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"


class Client:
    """Blocking; one object may be used from many threads.

    `generate` and `stream` take the prompt as text or as token ids; keyword arguments are the
    sampling parameters of the interface (`max_tokens=64, temperature=0, stop=["\\n"]`) besides
    `details`, `exclude_input`, `timeout` (seconds, enforced by the server) and `request_id`.
    They raise InferenceError.
    """

    def __init__(self, url: str, model: str) -> None:
        """`url`: host:port of Triton's gRPC endpoint."""
        self.model = model
        self._channel = grpc.insecure_channel(url, options=_CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def is_ready(self) -> bool:
        """Whether the model is loaded and takes requests."""
        try:
            return self._stub.ModelReady(service_pb2.ModelReadyRequest(name=self.model)).ready
        except grpc.RpcError:
            return False

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Completion:
        completion = Completion()
        for delta in self._run(_request(self.model, prompt, False, options)):
            completion.add(delta)
        return completion

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Iterator[Delta]:
        """Deltas as they come; closing the iterator cancels the request."""
        return self._run(_request(self.model, prompt, True, options))

    def _run(self, request: service_pb2.ModelInferRequest) -> Iterator[Delta]:
        call = self._stub.ModelStreamInfer(iter([request]))
        failure = None
        try:
            # To the end also after an error, which is the last response: tritonserver 2.51 keeps a
            # model loaded for good when a stream is cancelled just after its last response.
            for response in call:
                try:
                    yield from deltas(response)
                except InferenceError as error:
                    failure = error
        except grpc.RpcError as error:
            raise InferenceError.of(error) from None
        finally:
            call.cancel()
        if failure is not None:
            raise failure


class AsyncClient:
    """The same for asyncio. Use it within one event loop."""

    def __init__(self, url: str, model: str) -> None:
        self.model = model
        self._channel = grpc.aio.insecure_channel(url, options=_ASYNC_CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        # On the wire the same as a stream of one request, and a task less for each
        self._infer = self._channel.unary_stream(
            _STREAM_INFER,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )

    def for_model(self, model: str) -> AsyncClient:
        """A client of another model over the same connection; closing either closes both."""
        other = copy.copy(self)
        other.model = model
        return other

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def is_ready(self) -> bool:
        try:
            request = service_pb2.ModelReadyRequest(name=self.model)
            return (await self._stub.ModelReady(request)).ready
        except grpc.RpcError:
            return False

    async def generate(self, prompt: str | Sequence[int], **options: Any) -> Completion:
        completion = Completion()
        async for delta in self._run(_request(self.model, prompt, False, options)):
            completion.add(delta)
        return completion

    def stream(self, prompt: str | Sequence[int], **options: Any) -> AsyncIterator[Delta]:
        """Deltas as they come; closing the iterator or cancelling its task cancels the request."""
        return self._run(_request(self.model, prompt, True, options))

    async def _run(self, request: service_pb2.ModelInferRequest) -> AsyncIterator[Delta]:
        call = self._infer(request)
        failure = None
        try:
            async for response in call:  # to the end, as in Client
                try:
                    for delta in deltas(response):
                        yield delta
                except InferenceError as error:
                    failure = error
        except grpc.RpcError as error:
            raise InferenceError.of(error) from None
        finally:
            call.cancel()
        if failure is not None:
            raise failure


_OPTIONS = ("details", "exclude_input", "timeout", "request_id")


def _request(
    model: str, prompt: str | Sequence[int], stream: bool, options: dict[str, Any]
) -> service_pb2.ModelInferRequest:
    ours = {name: options.pop(name) for name in _OPTIONS if name in options}
    return generate_request(model, prompt, stream=stream, sampling=options, **ours)
