"""What is wrong with a request is said with INVALID_ARG, by name, and disturbs nobody."""

import json
from typing import Any

import pytest
from served import Served
from tritonclient import utils as triton


def refused(model: Served, prompt: str | list[int], **options: Any) -> str:
    message = model.refusal(prompt, **options)
    assert "Traceback" not in message
    assert "/" not in message, "no path of the server"
    return message


def test_the_status_of_a_wrong_request_is_invalid_argument(whole: Served) -> None:
    for options in ({"max_tokens": 0}, {"max_token": 1}, {"logit_bias": {"49152": 1}}):
        with pytest.raises(triton.InferenceServerException) as error:
            whole.infer("One", **options).result()
        assert error.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.fixture(autouse=True)
def goes_on_serving(smollm2: Served) -> Any:
    yield
    assert smollm2.generate("One two three", max_tokens=1).num_output_tokens == [1]


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused_while_another_request_streams_on(
    smollm2: Served, prompt: Any
) -> None:
    alone = smollm2.generate("One two three four", max_tokens=24)
    stream = smollm2.stream("One two three four", max_tokens=24)
    text = next(stream).text
    assert "empty" in refused(smollm2, prompt)
    text += "".join(delta.text for delta in stream)
    assert text == alone.text


def test_a_request_without_any_prompt_is_refused(smollm2: Served) -> None:
    status, answer = smollm2.post({"parameters": {"max_tokens": 4}})
    assert status == 400
    assert "text_input" in answer["error"]
    assert "input_ids" in answer["error"]


def test_a_prompt_beyond_the_model_is_refused_with_both_numbers(smollm2: Served) -> None:
    message = refused(smollm2, [5] * 1500, max_tokens=16)
    assert "1500" in message
    assert "1024" in message
    message = refused(smollm2, [5] * 1000, max_tokens=100)
    assert "1000" in message
    assert "1024" in message


def test_a_prompt_that_fills_the_model_to_the_last_token_is_served(synthetic: Served) -> None:
    assert synthetic.generate([5] * 8190, max_tokens=2).num_output_tokens == [2]
    assert "8192" in refused(synthetic, [5] * 8191, max_tokens=2)


def test_a_text_of_five_megabytes_is_refused_with_both_numbers(smollm2: Served) -> None:
    message = refused(smollm2, "word " * (1 << 20), max_tokens=16)
    assert "1024" in message
    assert len(message) < 1000


@pytest.mark.parametrize("token_id", [-1, 49_152, 2**31 - 1])
def test_token_ids_outside_of_the_vocabulary_are_refused(smollm2: Served, token_id: int) -> None:
    message = refused(smollm2, [5, token_id, 6], max_tokens=4)
    assert str(token_id) in message
    assert "49151" in message


@pytest.mark.parametrize("token_id", ["49152", "999999999", "-1", "cat"])
def test_a_logit_bias_outside_of_the_vocabulary_is_refused(smollm2: Served, token_id: str) -> None:
    message = refused(smollm2, "One", max_tokens=4, logit_bias={token_id: 1.0})
    assert "logit_bias" in message
    assert token_id in message


BAD = [
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", 1.5),
    ("max_tokens", "many"),
    ("max_tokens", True),
    ("max_tokens", [16]),
    ("min_tokens", 17),
    ("temperature", -0.1),
    ("temperature", "hot"),
    ("temperature", "nan"),
    ("temperature", "inf"),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("min_p", 2),
    ("repetition_penalty", 0),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("seed", "abc"),
    ("seed", 2**63),
    ("stop", [1]),
    ("stop", [""]),
    ("stop", {"a": "b"}),
    ("stop", ["x"] * 65),
    ("stop", ["x" * 1025]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", "12"),
    ("stop_token_ids", list(range(1000))),
    ("include_stop_str_in_output", "perhaps"),
    ("ignore_eos", 2),
    ("logprobs", 21),
    ("logprobs", 10**9),
    ("logprobs", -1),
    ("logit_bias", [1, 2]),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {str(token): 1 for token in range(5000)}),
    ("bad_words", [["x"]]),
    ("bad_words", ["x"] * 1000),
    ("n", 0),
    ("n", 65),
    ("n", 10**9),
    ("skip_special_tokens", "maybe"),
    ("priority", "high"),
    ("sparsity", "most"),
    ("sparsity", 1),
    ("cache_salt", ""),
    ("cache_salt", "x" * 10_000),
    ("timeout", -1),
    ("stream", "perhaps"),
]


def test_each_bad_parameter_is_refused_by_name(smollm2: Served) -> None:
    for name, value in BAD:
        body = {"text_input": "One", "sampling_parameters": json.dumps({name: value})}
        status, answer = smollm2.post(body)
        assert status == 400, (name, value, answer)
        assert name in answer["error"], (name, value)
        assert "NoneType" not in answer["error"]
        assert len(answer["error"]) < 500, (name, "the value is cut short")


@pytest.mark.parametrize(
    ("name", "near"),
    [("max_token", "max_tokens"), ("temprature", "temperature"), ("suffix", ""), ("echo", "")],
)
def test_an_unknown_parameter_is_refused_by_name_with_the_nearest_known_one(
    smollm2: Served, name: str, near: str
) -> None:
    for body in (
        {"text_input": "One", "sampling_parameters": json.dumps({name: 1})},
        {"text_input": "One", "parameters": {name: 1}},
    ):
        status, answer = smollm2.post(body)
        assert status == 400
        assert repr(name) in answer["error"]
        assert (f"did you mean {near!r}" in answer["error"]) == bool(near)


@pytest.mark.parametrize("given", ["{", "[1]", "3", '"max_tokens"', "nul", '{"max_tokens": 1e999}'])
def test_sampling_parameters_that_are_no_json_object_are_refused(
    smollm2: Served, given: str
) -> None:
    status, answer = smollm2.post({"text_input": "One", "sampling_parameters": given})
    assert status == 400
    assert "sampling_parameters" in answer["error"] or "max_tokens" in answer["error"]


def test_deeply_nested_and_huge_json_is_refused(smollm2: Served) -> None:
    for given in ("[" * 100_000, '{"a":' * 50_000, '{"stop": "' + "x" * (5 << 20) + '"}'):
        status, answer = smollm2.post({"text_input": "One", "sampling_parameters": given})
        assert status == 400
        assert "sampling_parameters" in answer["error"]


def test_lists_in_the_parameters_of_generate_are_answered_with_where_they_belong(
    smollm2: Served,
) -> None:
    status, answer = smollm2.post({"text_input": "One", "parameters": {"stop_token_ids": "[5, 6]"}})
    assert status == 400
    assert "stop_token_ids" in answer["error"]
    assert "lists go into the sampling_parameters JSON" in answer["error"]


def test_a_list_in_the_parameters_of_generate_is_an_error_that_names_it(smollm2: Served) -> None:
    status, answer = smollm2.post({"text_input": "One", "parameters": {"stop": ["a"]}})
    assert status == 400
    assert "stop" in answer["error"]


def test_numbers_and_booleans_given_as_strings_are_taken(smollm2: Served) -> None:
    plain = {
        "max_tokens": 6,
        "temperature": 0,
        "ignore_eos": True,
        "top_k": 3,
        "include_stop_str_in_output": False,
        "stop": " four",
    }
    strings = {
        "max_tokens": "6",
        "temperature": "0.0",
        "ignore_eos": "true",
        "top_k": "3",
        "include_stop_str_in_output": "false",
        "stop": " four",
    }
    as_json = {"text_input": "One two three", "sampling_parameters": json.dumps(plain)}
    answers = [
        smollm2.post(as_json),
        smollm2.post({**as_json, "sampling_parameters": json.dumps(strings)}),
        smollm2.post({"text_input": "One two three", "parameters": plain}),
        smollm2.post({"text_input": "One two three", "parameters": strings}),
    ]
    assert [status for status, _ in answers] == [200] * 4
    assert len({answer["text_output"] for _, answer in answers}) == 1
    assert "four" not in answers[0][1]["text_output"].removeprefix("One two three")


def test_the_json_wins_where_the_parameters_name_the_same(smollm2: Served) -> None:
    status, answer = smollm2.post(
        {
            "text_input": "One two",
            "sampling_parameters": '{"max_tokens": 2}',
            "parameters": {"max_tokens": 5, "temperature": 0},
            "return_num_output_tokens": True,
        }
    )
    assert (status, answer["num_output_tokens"]) == (200, 2)


def test_streaming_from_a_model_that_sends_one_response_is_refused(whole: Served) -> None:
    status, answer = whole.post({"text_input": "One", "stream": True})
    assert status == 400
    assert "decoupled" in answer["error"]
