"""OpenAI's fields become SamplingParams' names, or a refusal that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from inferx.engine.sampling import _READERS
from inferx.entrypoints.openai.errors import ApiError, of_status
from inferx.entrypoints.openai.fields import SAMPLING
from inferx.entrypoints.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    chat_request,
    completion_request,
    json_object,
)

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatRequest:
    return chat_request({"model": "m", "messages": MESSAGES, **fields})


def completion(**fields: Any) -> CompletionRequest:
    return completion_request({"model": "m", "prompt": "hi", **fields})


def refusal(read: Any, **fields: Any) -> tuple[str | None, str]:
    with pytest.raises(ApiError) as error:
        read(**fields)
    assert error.value.status == 400
    return error.value.param, error.value.message


def test_a_chat_without_a_limit_has_none_and_a_completion_has_openai_s() -> None:
    assert chat().sampling == {"max_tokens": None}
    assert completion().sampling == {}  # 16, which is SamplingParams' default too


def test_the_newer_name_of_the_limit_is_max_tokens() -> None:
    assert chat(max_completion_tokens=5).sampling == {"max_tokens": 5}
    assert chat(max_completion_tokens=5, max_tokens=5).sampling == {"max_tokens": 5}
    assert refusal(chat, max_completion_tokens=5, max_tokens=6) == (
        "max_completion_tokens",
        "max_completion_tokens is 5 and max_tokens is 6: give one of them",
    )


def test_every_sampling_parameter_can_be_set() -> None:
    apart = {"max_tokens", "logprobs"}
    assert set(SAMPLING) == set(_READERS) - apart


def test_chat_s_logprobs_are_a_switch_and_a_count() -> None:
    assert chat().logprobs is None
    assert chat(logprobs=False).logprobs is None
    assert chat(logprobs=True).logprobs == 0
    asked = chat(logprobs=True, top_logprobs=5)
    assert (asked.logprobs, asked.sampling["logprobs"]) == (5, 5)
    assert refusal(chat, top_logprobs=1)[0] == "logprobs"


def test_a_completion_s_logprobs_are_a_count() -> None:
    assert completion(logprobs=0).logprobs == 0
    assert completion(logprobs=3).sampling == {"logprobs": 3}


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_parts_of_text_are_joined_and_empty_fields_dropped() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": "assistant", "content": content, "tool_calls": [], "refusal": None}
    message |= {"annotations": [], "audio": None, "function_call": None}
    assert chat(messages=[message]).messages == [{"role": "assistant", "content": "a\nb"}]
    message["annotations"] = [{"type": "url_citation"}]
    assert refusal(chat, messages=[message])[0] == "messages[0].annotations"


@pytest.mark.parametrize(
    ("name", "neutral", "asking"),
    [
        ("tools", [], [{"type": "function"}]),
        ("tool_choice", "none", "required"),
        ("response_format", {"type": "text"}, {"type": "json_object"}),
        ("store", False, True),
        ("service_tier", "auto", "flex"),
        ("modalities", ["text"], ["text", "audio"]),
    ],
)
def test_what_is_not_supported_is_refused_unless_it_asks_for_nothing(
    name: str, neutral: Any, asking: Any
) -> None:
    assert chat(**{name: neutral}) == chat(**{name: None}) == chat()
    param, message = refusal(chat, **{name: asking})
    assert (param, message) == (name, f"{name} is not supported by this server: leave it out")


@pytest.mark.parametrize("name", ["user", "safety_identifier"])
def test_who_asks_is_taken_as_text_and_changes_nothing(name: str) -> None:
    assert chat(**{name: "somebody"}) == chat()
    assert refusal(chat, **{name: 5}) == (name, f"{name} is no string")


@pytest.mark.parametrize("role", ["tool", "function"])
def test_what_a_tool_has_said_is_not_supported(role: str) -> None:
    messages = [*MESSAGES, {"role": role, "content": "4"}]
    assert refusal(chat, messages=messages) == (
        "messages[1].role",
        f"messages[1].role {role!r} is not supported by this server: leave it out",
    )


@pytest.mark.parametrize(
    "prompt", ["", [], [""], ["a", ""], [[]], [[1], []], [1, "a"], [[1], 2], {}]
)
def test_a_prompt_with_nothing_in_it_or_of_another_kind_is_refused(prompt: Any) -> None:
    assert refusal(completion, prompt=prompt)[0] == "prompt"


def test_best_of_may_repeat_n() -> None:
    assert completion(n=2, best_of=2).sampling == {"n": 2}
    assert completion(best_of=None) == completion(best_of=1) == completion()
    for fields in ({"best_of": 2}, {"n": 2, "best_of": 1}, {"n": 2, "best_of": 3}):
        assert refusal(completion, **fields) == (
            "best_of",
            "best_of is not supported: leave it out, or set it to n",
        )


@pytest.mark.parametrize("name", ["n", "best_of", "logprobs", "max_tokens", "min_tokens", "top_k"])
def test_every_integer_takes_numbers_as_text_and_nothing_else(name: str) -> None:
    """As of the tensor interface, whose clients send numbers as text."""
    for one in (1, "1", " 1 ", 1.0):
        completion(**{name: one})
    for wrong in (True, False, "true", "one", "", 1.5, [1], {"a": 1}):
        param, message = refusal(completion, **{name: wrong})
        assert param == name
        assert "expected an integer between" in message


def test_stream_options_need_a_stream_and_usage_is_their_only_one() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={"include_usage": None}).include_usage
    assert refusal(chat, stream_options={})[0] == "stream_options"
    options = {"continuous_usage_stats": True}
    assert refusal(chat, stream=True, stream_options=options)[0] == (
        "stream_options.continuous_usage_stats"
    )


def test_json_that_is_no_object_is_refused() -> None:
    assert json_object(b'{"a": 1}') == {"a": 1}
    for data in (b"", b"[]", b"{", b"\xff"):
        with pytest.raises(ApiError):
            json_object(data)


@pytest.mark.parametrize(
    ("status", "message", "http"),
    [
        ("INVALID_ARG", "top_p is 3: expected less", 400),
        ("UNAVAILABLE", "the queue is full: 3 sequences are in flight", 429),
        ("UNAVAILABLE", "the engine is down", 503),
        ("CANCELLED", "its deadline passed", 408),
        ("NOT_FOUND", "no model", 404),
        ("INTERNAL", "error 3", 500),
        ("UNKNOWN", "what Triton says", 500),
    ],
)
def test_a_triton_status_has_an_http_status(status: str, message: str, http: int) -> None:
    error = of_status(status, message)
    assert (error.status, error.message) == (http, message)
    assert ("retry-after" in error.headers) == (http in (429, 503))
    assert error.param == ("top_p" if http == 400 else None)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("n is 65: expected an integer between 1 and 64", "n"),
        ("logit_bias holds the token id 49152: expected ids from 0 to 49151", "logit_bias"),
        ("bad_words has ' ': expected words, not white space", "bad_words"),
        ("the prompt has 9000 tokens: the model takes at most 8192 tokens", None),
    ],
)
def test_an_error_of_the_model_names_the_field_that_it_begins_with(
    message: str, param: str | None
) -> None:
    assert of_status("INVALID_ARG", message).param == param
