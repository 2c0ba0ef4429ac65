"""A Triton request becomes a GenerateRequest, or one sentence that says what is wrong with it."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inferx.engine.sampling import SamplingParams
from inferx.errors import InvalidArgument
from inferx.triton.protocol import MAX_PARAMETERS_BYTES, GenerateRequest, ReturnFlags, read_request
from triton_double import Request

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
DEFAULTS = GenerateRequest(
    text="Hello",
    input_ids=None,
    stream=False,
    exclude_input_in_output=False,
    returns=ReturnFlags(),
    parse_special_tokens=True,
    timeout=None,
    sampling=SamplingParams(),
)


def read(text_input="Hello", **request) -> GenerateRequest:
    return read_request(Request(text_input=text_input, **request))


def refusal(**request) -> str:
    with pytest.raises(InvalidArgument) as error:
        read_request(Request(**request))
    return str(error.value)


def test_a_text_alone_gets_every_default():
    assert read() == DEFAULTS


def test_token_ids_stand_in_for_a_text():
    assert read_request(Request(input_ids=[5, 6])) == DEFAULTS._replace(text=None, input_ids=[5, 6])


def test_the_prompt_is_left_out_of_streams_unless_asked_for():
    assert read(stream=True).exclude_input_in_output is True
    assert read(stream=False).exclude_input_in_output is False
    assert read(stream=True, exclude_input_in_output=False).exclude_input_in_output is False
    assert read(exclude_input_in_output=True).exclude_input_in_output is True


def test_numbers_and_booleans_come_as_strings_too():
    given = {"max_tokens": "128", "temperature": "0.5", "ignore_eos": "false"}
    expected = SamplingParams(max_tokens=128, temperature=0.5, ignore_eos=False)
    assert read(sampling_parameters=given).sampling == expected
    assert read(parameters={**given, "stream": "true"}) == DEFAULTS._replace(
        stream=True, exclude_input_in_output=True, sampling=expected
    )


def test_the_json_wins_over_request_parameters_and_a_tensor_over_both():
    both = read(
        parameters={"max_tokens": 5, "seed": 7, "stream": False},
        sampling_parameters={"max_tokens": 6, "stream": False},
        stream=True,
    )
    assert both.sampling == SamplingParams(max_tokens=6, seed=7)
    assert both.stream is True


def test_what_is_to_be_returned_may_be_asked_for_in_either_way():
    assert read(return_logprobs=True).returns == ReturnFlags(logprobs=True)
    assert read(parameters={"return_finish_reason": True}).returns == ReturnFlags(
        finish_reason=True
    )


def test_logprobs_are_computed_only_where_an_output_shows_them():
    assert read(parameters={"logprobs": 3}).sampling.logprobs is None
    assert read(parameters={"logprobs": 3}, return_logprobs=True).sampling.logprobs == 3
    assert read(return_cumulative_logprob=True).sampling.logprobs == 0


def test_timeout_is_the_requests_or_a_parameter_in_microseconds():
    assert read(timeout=1_500_000).timeout == 1.5
    assert read(parameters={"timeout": 250_000}).timeout == 0.25
    assert read(parameters={"timeout": 0}).timeout is None
    assert refusal(text_input="x", parameters={"timeout": -1}) == (
        "timeout is -1: expected an integer between 0 and 9223372036854775807"
    )


def test_the_id_that_generate_repeats_among_the_parameters_is_no_sampling_parameter():
    assert read(parameters={"id": "42"}) == DEFAULTS


def test_the_openai_frontends_best_of_is_taken_where_it_equals_n():
    assert read(sampling_parameters={"best_of": 1}).sampling.n == 1
    assert refusal(text_input="x", sampling_parameters={"best_of": 2}) == (
        "best_of is 2: expected n, which is 1, as InferX returns every choice"
    )


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({}, "the request has no prompt: give text_input or input_ids"),
        (
            {"text_input": "x", "input_ids": [1]},
            "the request has text_input and input_ids: give one of them",
        ),
        ({"text_input": ""}, "text_input is empty: it needs at least one character"),
        ({"input_ids": []}, "input_ids is empty: it needs at least one token id"),
        (
            {"input_ids": np.ones((2, 2), np.int32)},
            "input_ids has the shape [2, 2]: expected one dimension of token ids",
        ),
        (
            {"text_input": np.array([b"a", b"b"], dtype=object)},
            "text_input has 2 elements: expected exactly one",
        ),
        (
            {"text_input": b"caf\xe9 au lait"},
            "text_input is not UTF-8: the byte 0xe9 at position 3 does not belong there",
        ),
        (
            {"text_input": "x", "sampling_parameters": "[1]"},
            'sampling_parameters is a JSON array: expected an object, as in {"max_tokens": 64}',
        ),
        (
            {"text_input": "x", "sampling_parameters": "3"},
            'sampling_parameters is a JSON number: expected an object, as in {"max_tokens": 64}',
        ),
        (
            {"text_input": "x", "sampling_parameters": b'{"stop": "\xff"}'},
            "sampling_parameters is not UTF-8: the byte 0xff at position 10 does not belong there",
        ),
        (
            {"text_input": "x", "sampling_parameters": "[" * 100_000},
            "sampling_parameters is not JSON: it is nested too deeply",
        ),
        (
            {"text_input": "x", "sampling_parameters": b" " * (MAX_PARAMETERS_BYTES + 1)},
            "sampling_parameters has 1048577 bytes: expected at most 1048576",
        ),
        (
            {"text_input": "x", "parameters": {"max_token": 1}},
            "unknown sampling parameter 'max_token'; did you mean 'max_tokens'?",
        ),
        (
            {"text_input": "x", "parameters": {"a" * 9000: 1}},
            f"unknown sampling parameter '{'a' * 77}...'",
        ),
        (
            {"text_input": "x", "parameters": {"temperature": 10**400}},
            f"temperature is 1{'0' * 76}...: expected a number between 0 and 100",
        ),
        (
            {"text_input": "x", "parameters": {"stream": "perhaps"}},
            "stream is 'perhaps': expected true or false",
        ),
        (
            {"text_input": "x", "parameters": {"temperature": -1}},
            "temperature is -1: expected a number between 0 and 100",
        ),
        (
            {"text_input": "x", "parameters": {"stop_token_ids": "7"}},
            "stop_token_ids is '7': expected a list of at most 256 token ids "
            "(lists go into the sampling_parameters JSON)",
        ),
    ],
)
def test_a_refusal_names_what_is_wrong(request_, sentence):
    assert refusal(**request_) == sentence


def test_malformed_json_is_located():
    assert refusal(text_input="x", sampling_parameters='{"max_tokens": }').startswith(
        "sampling_parameters is not JSON: JSON is malformed"
    )


def test_half_a_surrogate_pair_cannot_reach_the_engine():
    assert "not JSON" in refusal(text_input="x", sampling_parameters='{"stop": "\\ud800"}')


def refusal_or_nothing(**inputs):
    try:
        read_request(Request(**inputs))
    except InvalidArgument as error:
        return str(error)
    return ""


@unhurried
@given(st.binary(max_size=200))
def test_no_bytes_of_sampling_parameters_raise_anything_else(raw):
    assert "\n" not in refusal_or_nothing(text_input="x", sampling_parameters=raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@unhurried
@given(
    st.dictionaries(
        st.sampled_from([*sorted(SamplingParams.__struct_fields__), "timeout", "stream"]),
        json_values,
        max_size=4,
    )
)
def test_no_value_of_a_parameter_raises_anything_else(parameters):
    refusal_or_nothing(text_input="x", parameters=parameters)


def test_a_reader_says_in_microseconds_what_a_response_takes_it():
    assert read(parameters={"read_time": 100}) == DEFAULTS._replace(read_time=1e-4)
    assert read(sampling_parameters={"read_time": 250}) == DEFAULTS._replace(read_time=2.5e-4)
    for wrong in (0, 1001, "soon"):
        said = refusal(text_input="Hello", sampling_parameters={"read_time": wrong})
        assert "read_time" in said
        assert "an integer between 1 and 1000" in said
