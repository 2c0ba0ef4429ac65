"""SamplingParams at the door: what is taken, and the sentence for what is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from inferx.engine.sampling import SamplingParams
from inferx.errors import InvalidArgument

HUGE = 10**400  # JSON knows no largest number


def refusal(**given: Any) -> str:
    with pytest.raises(InvalidArgument) as raised:
        SamplingParams.parse(given)
    return str(raised.value)


def test_null_is_the_default_and_numbers_and_booleans_may_be_strings() -> None:
    given = {
        "max_tokens": " 128 ",
        "temperature": "0.5",
        "top_k": -1,
        "ignore_eos": "False",
        "logprobs": "true",
        "seed": 3.0,
        "stop": None,
    }
    assert SamplingParams.parse(given) == SamplingParams(
        max_tokens=128, temperature=0.5, top_k=0, ignore_eos=False, logprobs=0, seed=3
    )


@pytest.mark.parametrize(
    ("name", "low", "high", "beyond"),
    [
        ("n", 1, 64, (0, 65)),
        ("max_tokens", 1, 2**31 - 1, (0, 2**31)),
        ("temperature", 0, 100, (-0.1, 100.1)),
        ("top_p", 0.001, 1, (0, 1.1)),
        ("top_k", -1, 2**63 - 1, (-2, 2**63)),
        ("min_p", 0, 1, (-0.1, 1.1)),
        ("repetition_penalty", 0.01, 100, (0, 1e-40, 101)),
        ("presence_penalty", -2, 2, (-2.1, 2.1)),
        ("frequency_penalty", -2, 2, (-2.1, 2.1)),
        ("seed", -(2**63), 2**63 - 1, (-(2**63) - 1, 2**63)),
        ("logprobs", 0, 20, (-1, 21)),
        ("priority", -(2**31) + 1, 2**31 - 1, (-(2**31), 2**31)),
        ("sparsity", 0, 0.99, (-0.1, 1)),
    ],
)
def test_numbers_are_taken_up_to_their_bounds_and_refused_by_name_beyond(
    name: str, low: float, high: float, beyond: tuple[float, ...]
) -> None:
    for value in (low, high):
        SamplingParams.parse({name: value, "max_tokens": value if name == "max_tokens" else 16})
    for value in (*beyond, HUGE, -HUGE, float("nan"), float("inf"), "nan", "x", "", [], {}):
        assert refusal(**{name: value}).startswith(f"{name} is ")


def test_a_huge_bias_is_refused_by_name() -> None:
    assert refusal(logit_bias={"1": HUGE}).startswith("logit_bias is 1000")


def test_a_value_is_shown_by_its_beginning_however_deep_or_long_it_is() -> None:
    expected = 'expected "off", "auto" or a ratio of at least 0 and below 1'
    deep: Any = 1
    for _ in range(10_000):  # which repr could not write
        deep = [deep]
    assert refusal(sparsity=deep) == f"sparsity is {'[' * 21}...{']' * 21}: {expected}"
    for value, beginning in ((["x"] * 100, "['x', 'x', "), ("x" * 100, "'xxx"), (HUGE, "1000")):
        text = refusal(sparsity=value)
        assert text.startswith(f"sparsity is {beginning}")
        assert text.endswith(f"...: {expected}")
        assert len(text) == len("sparsity is ") + 80 + len(f": {expected}")


@pytest.mark.parametrize("name", ["stop", "bad_words", "cache_salt"])
def test_text_that_is_no_unicode_is_refused_by_name(name: str) -> None:
    assert refusal(**{name: "a\ud800"}).startswith(f"{name} is 'a\\ud800'")


@pytest.mark.parametrize(("name", "count", "length"), [("stop", 64, 1024), ("bad_words", 256, 128)])
def test_lists_of_strings_are_bounded_in_number_and_length(
    name: str, count: int, length: int
) -> None:
    expected = f"expected a non-empty string or a list of at most {count}, each up to {length} "
    SamplingParams.parse({name: ["a" * length] * count})
    for wrong in (["a"] * (count + 1), ["a" * (length + 1)], [""], "", [1], 5):
        assert expected in refusal(**{name: wrong})


def test_what_parse_takes_survives_the_wire() -> None:
    params = SamplingParams.parse({"stop": ["é", "\0"], "logit_bias": {"7": -100}, "seed": -1})
    encoded = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(encoded, type=SamplingParams) == params


def test_parameters_made_by_hand_are_validated_alike() -> None:
    params = SamplingParams(stop=("a",), logit_bias={7: 1.5}, stop_token_ids=(1,), n=2)
    assert params.validated() == params
    with pytest.raises(InvalidArgument, match="max_tokens is 0: expected an integer between 1 and"):
        SamplingParams(max_tokens=0).validated()


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    assert refusal(min_tokens=17) == (
        "min_tokens is 17: it must not exceed max_tokens, which is 16"
    )


def test_a_max_tokens_of_null_is_no_limit_and_other_nulls_are_defaults() -> None:
    assert SamplingParams.parse({"max_tokens": None, "min_tokens": 17, "top_p": None}) == (
        SamplingParams(max_tokens=None, min_tokens=17)
    )
    assert SamplingParams().max_tokens == 16
