from __future__ import annotations

import msgspec
import pytest
from inferx.engine.limits import check_request
from inferx.engine.messages import EngineInfo
from inferx.engine.sampling import SamplingParams
from inferx.errors import InvalidArgument
from sparse_paths import make_path

INFO = EngineInfo(
    max_model_len=10,
    vocab_size=100,
    eos_token_ids=[2],
    block_size=16,
    num_blocks=4,
    device="cpu",
    dtype="float32",
    weight_dtype="float32",
    kv_cache_dtype="float32",
    weight_bytes=0,
    kv_cache_bytes=0,
    load_seconds={},
)


def test_prompt_and_output_may_fill_the_model_exactly():
    check_request([0, 99, 5, 5], [SamplingParams(max_tokens=6)], INFO)


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, ["the prompt is empty"]),
        ([1] * 4, {"max_tokens": 7}, ["4 tokens", "max_tokens is 7", "at most 10"]),
        ([1] * 11, {"max_tokens": 1}, ["11 tokens", "at most 10"]),
        ([1, 100], {}, ["the prompt", "100", "0 to 99"]),
        ([1, -1], {}, ["the prompt", "-1", "0 to 99"]),
        ([1], {"stop_token_ids": [3, 100]}, ["stop_token_ids", "100", "0 to 99"]),
        ([1], {"logit_bias": {"100": 1.0}}, ["logit_bias", "100", "0 to 99"]),
    ],
)
def test_what_can_never_be_served_is_refused_with_the_numbers(prompt, params, words):
    params = SamplingParams.parse({"max_tokens": 2, **params})
    with pytest.raises(InvalidArgument) as refused:
        check_request(prompt, [params], INFO)
    for word in words:
        assert word in str(refused.value)


def test_every_choice_is_checked():
    with pytest.raises(InvalidArgument):
        check_request([1], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=10)], INFO)


def test_words_of_a_tokenizer_that_knows_more_than_the_model_are_refused():
    params = SamplingParams(max_tokens=1, bad_words_token_ids=((5,), (6, 100)))
    with pytest.raises(InvalidArgument, match="bad_words holds the token id 100"):
        check_request([1], [params], INFO)


def test_without_max_tokens_the_prompt_leaves_room_for_a_token() -> None:
    check_request([1] * 9, [SamplingParams(max_tokens=None)], INFO)
    with pytest.raises(InvalidArgument, match=r"10 tokens: the model takes at most 10 tokens"):
        check_request([1] * 10, [SamplingParams(max_tokens=None)], INFO)


def refusal(sparsity, info: EngineInfo) -> str:
    with pytest.raises(InvalidArgument) as refused:
        check_request([1], [SamplingParams(max_tokens=1, sparsity=sparsity)], info)
    return str(refused.value)


def test_a_ratio_has_to_be_one_that_the_model_is_calibrated_for():
    calibrated = msgspec.structs.replace(INFO, sparse_path=make_path())
    for sparsity in (None, "off", "auto", 0.0, 0.25, 0.5):
        check_request([1], [SamplingParams(max_tokens=1, sparsity=sparsity)], calibrated)
    assert refusal(0.3, calibrated) == (
        "sparsity is 0.3: this model is calibrated for 0.25, 0.5; name one of them, 'auto' or 'off'"
    )


def test_a_model_without_a_sparse_path_takes_what_can_be_served_dense():
    for sparsity in (None, "off", "auto", 0.0):
        check_request([1], [SamplingParams(max_tokens=1, sparsity=sparsity)], INFO)
    assert refusal(0.25, INFO) == (
        "sparsity is 0.25: this model is served dense; leave it out, or set sparsity in the "
        "model's settings"
    )
