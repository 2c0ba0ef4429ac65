"""A request for more sequences than the model ever takes is wrong, and no reason to try again."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from inferx.config import EngineConfig
from inferx.entrypoints.frontend import Frontend
from inferx.entrypoints.openai.app import Backend
from inferx.entrypoints.openai.server import OpenAIServer
from tokenizing import smollm2
from triton_ports import TritonPorts


@pytest.mark.parametrize(
    ("prompt", "n", "refused"),
    [
        (["x"] * 5, 1, "prompt has 5 prompts and n is 1: together 5 sequences, and "),
        (["x", "y", "z"], "2", "prompt has 3 prompts and n is 2: together 6 sequences, and "),
        (["x"] * 4, 1, None),
        (["x", "y"], 2, None),
    ],
)
def test_more_sequences_than_fit_are_refused_before_any_is_begun(
    prompt: Any, n: Any, refused: str | None
) -> None:
    config = EngineConfig(engine="synthetic", max_num_seqs=1, max_queue_size=3)
    with TritonPorts().listening() as triton:
        backend = Backend(triton.grpc_url, triton.metrics_url, {"m": smollm2()}, {"m": config})
        server = OpenAIServer(Frontend(0, None, 0, 0).listen("127.0.0.1"), backend)
        server.start()
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
                body = {"model": "m", "prompt": prompt, "n": n}
                answer = client.post("/v1/completions", json=body)
        finally:
            server.drain()
            server.join()
    if refused is None:
        assert answer.status_code == 500  # what this Triton says of a request
        return
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "prompt"
    assert (
        error["message"] == f"{refused}the model takes at most 4 at once; send fewer in a request"
    )
