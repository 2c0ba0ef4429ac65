"""One served model as a test sees it: requests, metrics, and the server's log."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc
import numpy as np
from inferx.triton.server import TritonServer
from inferx_client import Completion, Delta
from inferx_client.wire import deltas, generate_request
from metrics_page import OUTCOMES, num_unended, total
from tritonclient import grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

_OURS = ("details", "exclude_input", "timeout", "request_id")
PATIENCE = 20.0  # seconds for something that takes one or two


class Served:
    def __init__(self, server: TritonServer, name: str) -> None:
        self.server = server
        self.name = name
        self._channel = grpc.insecure_channel(
            server.grpc_url, options=[("grpc.max_send_message_length", -1)]
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._threads = ThreadPoolExecutor(64)

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()
        self._threads.shutdown(cancel_futures=True)

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Completion:
        """One response. Greedy, unless `options` say otherwise."""
        return _collected(self._deltas(prompt, False, options))

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Iterator[Delta]:
        """Sent with the first `next`; closing it cancels the request."""
        return self._deltas(prompt, True, options)

    def streamed(self, prompt: str | Sequence[int], **options: Any) -> Completion:
        return _collected(self._deltas(prompt, True, options))

    def call(self, request: service_pb2.ModelInferRequest) -> Any:
        """Sends it at once; iterable over the responses, and to be cancelled."""
        return self._stub.ModelStreamInfer(iter([request]))

    def request(
        self, prompt: str | Sequence[int], stream: bool, options: dict[str, Any]
    ) -> service_pb2.ModelInferRequest:
        ours = {name: options.pop(name) for name in _OURS if name in options}
        sampling = {"temperature": 0, **options}
        return generate_request(self.name, prompt, stream=stream, sampling=sampling, **ours)

    def _deltas(
        self, prompt: str | Sequence[int], stream: bool, options: dict[str, Any]
    ) -> Iterator[Delta]:
        call = self.call(self.request(prompt, stream, options))
        try:
            for response in call:
                yield from deltas(response)
        finally:
            call.cancel()

    def later(self, prompt: str | Sequence[int], **options: Any) -> Future[Completion]:
        """A stream that is read by another thread."""
        return self._threads.submit(self.streamed, prompt, **options)

    def refusal(self, prompt: str | Sequence[int], *, timeout: float = 0, **options: Any) -> str:
        """The sentence with which `generate` refuses."""
        body: dict[str, Any] = {"sampling_parameters": json.dumps({"temperature": 0, **options})}
        body["text_input" if isinstance(prompt, str) else "input_ids"] = prompt
        if timeout:
            body["parameters"] = {"timeout": round(timeout * 1e6)}
        status, answer = self.post(body)
        assert status != 200, "the request was served"
        return answer["error"]

    def infer(self, prompt: str, *, timeout: int | None = None, **options: Any) -> Infer:
        """tritonclient's own `infer`, in the background, for a model that is not decoupled."""
        return Infer(self, prompt, timeout, options)

    def post(self, body: dict[str, Any], endpoint: str = "generate") -> tuple[int, dict[str, Any]]:
        """The HTTP endpoints `generate` and, in the repository, `load`."""
        return post(self.server, f"/v2/models/{self.name}/{endpoint}", body)

    def metric(self, family: str, **labels: str) -> float:
        return metrics(self.server, family, model=self.name, **labels)

    def wait_for_metric(self, family: str, wanted: Callable[[float], bool], **labels: str) -> None:
        wait_for(
            lambda: wanted(self.metric(family, **labels)),
            lambda: f"{family} of {self.name!r} is {self.metric(family, **labels):g}",
        )

    def wait_until_idle(self) -> None:
        """Until every request that this model was given is counted as ended, and none holds a page
        or waits: gauges alone may be of the time before.
        """
        wait_for(
            lambda: self._num_unended() == 0,
            lambda: f"{self._num_unended():g} requests have not ended",
        )
        for family in ("num_requests_running", "num_requests_waiting", "kv_pages_used"):
            self.wait_for_metric(f"inferx:{family}", lambda value: value == 0)

    def counted(self, outcome: str) -> float:
        """Requests that have ended in this way, a key of OUTCOMES. None may be under way."""
        self.wait_until_idle()
        return self.metric(OUTCOMES[outcome])

    def wait_until_counted(self, outcome: str, count: float) -> None:
        self.wait_for_metric(OUTCOMES[outcome], lambda value: value == count)

    def _num_unended(self) -> float:
        return num_unended(metrics_text(self.server), model=self.name)

    def engine_pid(self) -> int:
        """Of the engine process that was started last."""
        ready = rf"inferx {self.name}:1 .*engine process (\d+) is ready"
        return int(re.findall(ready, self.server.log_text())[-1])


class Infer:
    """`timeout`: microseconds."""

    def __init__(
        self, model: Served, prompt: str, timeout: int | None, options: dict[str, Any]
    ) -> None:
        self._client = triton.InferenceServerClient(model.server.grpc_url)
        self._answer: list[tuple[Any, Any]] = []
        inputs = []
        for name, value in (("text_input", prompt), ("sampling_parameters", json.dumps(options))):
            tensor = triton.InferInput(name, [1], "BYTES")
            tensor.set_data_from_numpy(np.array([value.encode()], dtype=object))
            inputs.append(tensor)
        self._call = self._client.async_infer(model.name, inputs, self._take, timeout=timeout)

    def cancel(self) -> None:
        self._call.cancel()

    def _take(self, result: Any, error: Any) -> None:
        self._answer.append((result, error))

    def result(self) -> Any:
        """Raises InferenceServerException."""
        wait_for(lambda: bool(self._answer), lambda: "no answer came")
        result, error = self._answer[0]
        if error is not None:
            raise error
        return result


def _collected(found: Iterator[Delta]) -> Completion:
    completion = Completion()
    for delta in found:
        completion.add(delta)
    return completion


def post(server: TritonServer, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    host, port = server.http_url.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text or "{}")
    finally:
        connection.close()


def metrics_text(server: TritonServer) -> str:
    host, port = server.metrics_url.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def metrics(server: TritonServer, family: str, **labels: str) -> float:
    return total(metrics_text(server), family, **labels)


def wait_for(condition: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Polls: metrics are written about once a second."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.1)
