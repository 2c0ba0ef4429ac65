"""Client and AsyncClient: a request is one gRPC stream, so cancelling it cancels nothing else."""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inferx_client.wire import (
    Completion,
    Delta,
    InferenceError,
    deltas,
    generate_request,
    set_timeout,
)

RETRY_WAIT = 0.2  # seconds before the first retry, at most
LONGEST_RETRY_WAIT = 5.0
ANSWER_TIMEOUT = 10.0  # seconds for what a server says of its models at once, or not at all
_SERVER_GRACE = 2.0  # seconds that the client waits for the server's word on a timeout
_LARGE = 2**31 - 1
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", _LARGE),
    ("grpc.max_receive_message_length", _LARGE),
    # A server that is back is found within two seconds; gRPC would wait up to two minutes
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
]
# gRPC's own retries hold 7 KB for each stream that is open, and repeat none that has begun
_ASYNC_CHANNEL_OPTIONS = [*_CHANNEL_OPTIONS, ("grpc.enable_retries", 0)]
_READY_MODELS = service_pb2.RepositoryIndexRequest(ready=True)
_STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"


class Client:
    """Blocking; one object may be used from many threads.

    `generate` and `stream` take the prompt as text or as token ids; keyword arguments are the
    sampling parameters of the interface (`max_tokens=64, temperature=0, stop=["\\n"]`) besides
    `details`, `exclude_input`, `timeout` and `request_id`. They raise InferenceError.

    `timeout`, in seconds, is of the whole request, its retries and waiting included: the server
    ends the request then, and the client does not wait much longer for a server that has gone.

    A request that fails with UNAVAILABLE before any text has come (a full queue, a restart, a
    server that is not up yet) is sent again up to `retries` times, after a random wait that doubles
    from RETRY_WAIT to LONGEST_RETRY_WAIT. No other error is repeated.

    With `ping_interval`, in seconds, a server that says nothing while requests run is asked whether
    it is there, and they fail with UNAVAILABLE when it has not answered for twice as long. It must
    allow that (tritonserver's --grpc-http2-min-recv-ping-interval-without-data, in milliseconds, is
    5 minutes unless set), or it closes the connection.
    """

    def __init__(
        self, url: str, model: str, *, retries: int = 0, ping_interval: float | None = None
    ) -> None:
        """`url`: host:port of Triton's gRPC endpoint."""
        self.model = model
        self.retries = retries
        options = [*_CHANNEL_OPTIONS, *_pings(ping_interval)]
        self._channel = grpc.insecure_channel(url, options=options)
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
        """Whether the model is loaded and takes requests; not so where nobody answers."""
        try:
            request = service_pb2.ModelReadyRequest(name=self.model)
            return self._stub.ModelReady(request, timeout=ANSWER_TIMEOUT).ready
        except grpc.RpcError:
            return False

    def ready_models(self) -> list[str]:
        """The names of all models that take requests. Raises InferenceError."""
        try:
            return _names(self._stub.RepositoryIndex(_READY_MODELS, timeout=ANSWER_TIMEOUT))
        except grpc.RpcError as error:
            raise InferenceError.of(error) from None

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Completion:
        completion = Completion()
        for delta in self._repeated(_Attempts(self, prompt, False, options)):
            completion.add(delta)
        return completion

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Generator[Delta, None, None]:
        """Deltas as they come; closing the iterator cancels the request."""
        return self._repeated(_Attempts(self, prompt, True, options))

    def _repeated(self, attempts: _Attempts) -> Generator[Delta, None, None]:
        while True:
            try:
                with closing(self._run(attempts.request(), attempts.deadline())) as answer:
                    for delta in answer:
                        attempts.begun = True
                        yield delta
                return
            except InferenceError as error:
                time.sleep(attempts.wait_after(error))

    def _run(
        self, request: service_pb2.ModelInferRequest, deadline: float | None
    ) -> Generator[Delta, None, None]:
        call = self._stub.ModelStreamInfer(iter([request]), timeout=deadline)
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
            raise failure or InferenceError.of(error) from None
        finally:
            call.cancel()
        if failure is not None:
            raise failure


class AsyncClient:
    """The same for asyncio. Use it within one event loop."""

    def __init__(
        self, url: str, model: str, *, retries: int = 0, ping_interval: float | None = None
    ) -> None:
        self.model = model
        self.retries = retries
        options = [*_ASYNC_CHANNEL_OPTIONS, *_pings(ping_interval)]
        self._channel = grpc.aio.insecure_channel(url, options=options)
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
            return (await self._stub.ModelReady(request, timeout=ANSWER_TIMEOUT)).ready
        except grpc.RpcError:
            return False

    async def ready_models(self) -> list[str]:
        try:
            return _names(await self._stub.RepositoryIndex(_READY_MODELS, timeout=ANSWER_TIMEOUT))
        except grpc.RpcError as error:
            raise InferenceError.of(error) from None

    async def generate(self, prompt: str | Sequence[int], **options: Any) -> Completion:
        completion = Completion()
        async for delta in self._repeated(_Attempts(self, prompt, False, options)):
            completion.add(delta)
        return completion

    def stream(self, prompt: str | Sequence[int], **options: Any) -> AsyncGenerator[Delta, None]:
        """Deltas as they come; closing the iterator or cancelling its task cancels the request."""
        return self._repeated(_Attempts(self, prompt, True, options))

    async def _repeated(self, attempts: _Attempts) -> AsyncGenerator[Delta, None]:
        while True:
            try:
                async with aclosing(self._run(attempts.request(), attempts.deadline())) as answer:
                    async for delta in answer:
                        attempts.begun = True
                        yield delta
                return
            except InferenceError as error:
                await asyncio.sleep(attempts.wait_after(error))

    async def _run(
        self, request: service_pb2.ModelInferRequest, deadline: float | None
    ) -> AsyncGenerator[Delta, None]:
        call = self._infer(request, timeout=deadline)
        failure = None
        try:
            async for response in call:  # to the end, as in Client
                try:
                    for delta in deltas(response):
                        yield delta
                except InferenceError as error:
                    failure = error
        except grpc.RpcError as error:
            raise failure or InferenceError.of(error) from None
        finally:
            call.cancel()
        if failure is not None:
            raise failure


def _pings(interval: float | None) -> list[tuple[str, int]]:
    if interval is None:
        return []
    milliseconds = round(1000 * interval)
    return [
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", 2 * milliseconds),
        ("grpc.http2.ping_timeout_ms", 2 * milliseconds),  # newer gRPC goes by this one
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _names(index: service_pb2.RepositoryIndexResponse) -> list[str]:
    return sorted({model.name for model in index.models})  # an entry has each of its versions


_OPTIONS = ("details", "exclude_input", "request_id")


class _Attempts:
    """One request's tries, and the time that is left for them."""

    def __init__(
        self,
        client: Client | AsyncClient,
        prompt: str | Sequence[int],
        stream: bool,
        options: dict[str, Any],
    ) -> None:
        timeout = options.pop("timeout", None)
        ours = {name: options.pop(name) for name in _OPTIONS if name in options}
        self._end = None if timeout is None else time.monotonic() + timeout
        self._left = client.retries
        self._wait = RETRY_WAIT
        self._request = generate_request(
            client.model, prompt, stream=stream, sampling=options, **ours
        )
        self.begun = False  # whether anything has come, which cannot be taken back

    def request(self) -> service_pb2.ModelInferRequest:
        if self._end is not None:
            set_timeout(self._request, self._end - time.monotonic())
        return self._request

    def deadline(self) -> float | None:
        """Seconds for the client, longer than the server's, whose answer says more."""
        if self._end is None:
            return None
        return max(0.0, self._end - time.monotonic()) + _SERVER_GRACE

    def wait_after(self, error: InferenceError) -> float:
        """Seconds until the next try. Raises the error where there is to be none."""
        wait = random.uniform(self._wait / 2, self._wait)
        late = self._end is not None and time.monotonic() + wait >= self._end
        if error.status != "UNAVAILABLE" or self.begun or not self._left or late:
            raise error
        self._left -= 1
        self._wait = min(2 * self._wait, LONGEST_RETRY_WAIT)
        return wait
