from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferx.engine.messages import RequestOutput
from inferx.engine.plan import TokenLogprobs
from inferx.engine.sampling import SamplingParams
from inferx.text.stream import TextDelta, TextStream
from tokenizing import byte_fallback, byte_fallback_ids, piece, smollm2, smollm2_ids, untimed

EOS = 2


def stream(**params: Any) -> TextStream:
    return TextStream(smollm2(), SamplingParams.parse(params))


def ids(text: str) -> list[int]:
    return smollm2().encode(text)


def outputs(
    token_ids: list[int],
    sizes: list[int],
    finish_reason: Any = "length",
    stop_token_id: int | None = None,
    logprobs: list[TokenLogprobs] | None = None,
) -> list[RequestOutput]:
    """The tokens in outputs of these sizes, the rest in the last one, which ends the request."""
    made, begin = [], 0
    for size in sizes:
        end = min(begin + size, len(token_ids) - 1)
        if end > begin:
            made.append(
                RequestOutput(1, token_ids[begin:end], logprobs=logprobs and logprobs[begin:end])
            )
            begin = end
    rest = logprobs and logprobs[begin:]
    return [*made, RequestOutput(1, token_ids[begin:], finish_reason, stop_token_id, rest)]


def total(deltas: list[TextDelta]) -> tuple[Any, ...]:
    """What a client gets in the end."""
    reasons = [delta.finish_reason for delta in deltas if delta.finish_reason]
    return (
        "".join(delta.text for delta in deltas),
        sum(delta.num_tokens for delta in deltas),
        [token_id for delta in deltas for token_id in delta.token_ids],
        [entry for delta in deltas for entry in delta.logprobs or []],
        next((d.cumulative_logprob for d in reversed(deltas) if d.num_tokens), None),
        reasons,
    )


@pytest.mark.parametrize(
    ("tokenizer", "some_ids"), [(smollm2, smollm2_ids), (byte_fallback, byte_fallback_ids)]
)
@untimed
@given(data=st.data())
def test_text_end_and_counts_do_not_depend_on_how_tokens_are_grouped(
    tokenizer: Any, some_ids: Any, data: st.DataObject
) -> None:
    token_ids = data.draw(some_ids.filter(bool))
    text = tokenizer().decode(token_ids)
    pieces = st.integers(0, max(0, len(text) - 1)).flatmap(
        lambda begin: st.integers(1, 4).map(lambda size: text[begin : begin + size] or "x")
    )
    params = SamplingParams(
        stop=tuple(data.draw(st.lists(pieces, max_size=3))),
        include_stop_str_in_output=data.draw(st.booleans()),
        skip_special_tokens=data.draw(st.booleans()),
        min_tokens=data.draw(st.integers(0, 5)),
        logprobs=0,
    )
    stop_token_id = data.draw(st.sampled_from([None, token_ids[-1]]))
    logprobs = [TokenLogprobs(-0.1 * index, 1, [], []) for index in range(len(token_ids))]
    reason = "length" if stop_token_id is None else "stop"

    def run(sizes: list[int], merges: list[int]) -> tuple[Any, ...]:
        stream = TextStream(tokenizer(), params)
        todo = outputs(token_ids, sizes, reason, stop_token_id, logprobs)
        deltas = []
        for merge in [*merges, *[1] * len(todo)]:
            if todo and stream.finish_reason is None:
                deltas.append(stream.push(todo[: merge + 1] if merge else todo[0]))
                todo = todo[max(1, merge + 1 if merge else 1) :]
        return total(deltas)

    sizes = data.draw(st.lists(st.integers(1, 6), max_size=40))
    merges = data.draw(st.lists(st.integers(0, 4), max_size=20))
    assert run(sizes, merges) == run([1] * len(token_ids), [0] * len(token_ids))


def test_without_stop_strings_every_token_shows_at_once() -> None:
    choice = stream()
    deltas = [choice.push(RequestOutput(1, [token_id])) for token_id in ids("Hello world!")]
    assert [delta.text for delta in deltas] == ["Hello", " world", "!"]
    assert [delta.finish_reason for delta in deltas] == [None, None, None]


def test_the_text_of_eos_is_not_shown_and_its_token_counts() -> None:
    for params in ({}, {"skip_special_tokens": False}, {"stop": "never"}):
        delta = stream(**params).push(RequestOutput(1, [*ids("Paris."), EOS], "stop", EOS))
        assert delta.text == "Paris."
        assert delta.num_tokens == 3
        assert delta.token_ids == [*ids("Paris."), EOS]
        assert delta.finish_reason == "stop"


def test_a_stop_tokens_text_shows_where_stop_strings_are_included() -> None:
    choice = stream(include_stop_str_in_output=True, skip_special_tokens=False)
    assert choice.push(RequestOutput(1, [*ids("Hi"), EOS], "stop", EOS)).text == "Hi<|im_end|>"


def test_a_stop_string_cuts_the_text_and_counts_tokens_up_to_the_one_that_completed_it() -> None:
    token_ids = ids("one two\n\nUser: three")
    choice = stream(stop=["\nUser:"])
    delta = choice.push(RequestOutput(1, token_ids, "length"))
    completed = next(n for n in range(99) if "\nUser:" in smollm2().decode(token_ids[:n]))
    assert delta.text == "one two\n"
    assert (delta.num_tokens, delta.finish_reason) == (completed, "stop")
    assert choice.num_tokens == completed


def test_after_a_stop_string_further_outputs_add_nothing() -> None:
    choice = stream(stop=["two"])
    assert choice.push(RequestOutput(1, ids("one two"))).finish_reason == "stop"
    late = choice.push(RequestOutput(1, ids(" three"), "length"))
    assert (late.text, late.num_tokens, late.finish_reason) == ("", 0, None)


def test_text_that_is_held_back_comes_with_the_end() -> None:
    choice = stream(stop=["world peace"])
    first = choice.push(RequestOutput(1, ids("Hello world")))
    assert (first.text, first.num_tokens) == ("Hello ", 2)
    assert choice.push(RequestOutput(1, [EOS], "stop", EOS)).text == "world"


def test_a_stop_string_within_min_tokens_is_text() -> None:
    token_ids = ids("a. b. c. d.")  # "a", ".", " b", ".", ...
    choice = stream(stop=["."], min_tokens=3)
    delta = choice.push(RequestOutput(1, token_ids))
    assert (delta.text, delta.num_tokens) == ("a. b", 4)


def test_the_token_that_reaches_min_tokens_completes_no_stop_string() -> None:
    token_ids = ids("a. b. c.")
    choice = stream(stop=["."], min_tokens=2)
    delta = choice.push(RequestOutput(1, token_ids))
    assert (delta.text, delta.num_tokens) == ("a. b", 4)


def test_an_incomplete_character_at_the_end_shows_as_the_full_decode_shows_it() -> None:
    cut = ids("ok 🎉")[:-1]
    choice = stream()
    assert choice.push(RequestOutput(1, cut)).text == "ok "
    assert choice.push(RequestOutput(1, [], "length")).text == "\ufffd"


def test_the_output_goes_on_from_the_prompt() -> None:
    params = SamplingParams()
    output = RequestOutput(1, [piece("▁hello")])
    assert TextStream(byte_fallback(), params, [1]).push(output).text == "hello"
    assert TextStream(byte_fallback(), params, [1, piece("o")]).push(output).text == " hello"
    assert TextStream(byte_fallback(), params).push(output).text == " hello"


def test_logprobs_have_one_entry_a_token_with_the_sampled_one_first() -> None:
    hello, world = ids("Hello world")
    found = [
        TokenLogprobs(-0.5, 1, [hello, EOS], [-0.5, -1.5]),
        TokenLogprobs(-2.0, 3, [EOS], [-0.25]),
    ]
    delta = stream(logprobs=2).push(RequestOutput(1, [hello, world], None, None, found))
    assert delta.logprobs is not None
    assert json.loads(json.dumps(delta.logprobs)) == [
        {
            str(hello): {"logprob": -0.5, "rank": 1, "decoded_token": "Hello"},
            "2": {"logprob": -1.5, "rank": 2, "decoded_token": "<|im_end|>"},
        },
        {
            str(world): {"logprob": -2.0, "rank": 3, "decoded_token": " world"},
            "2": {"logprob": -0.25, "rank": 1, "decoded_token": "<|im_end|>"},
        },
    ]
    assert [next(iter(entry)) for entry in delta.logprobs] == [str(hello), str(world)]
    assert delta.cumulative_logprob == -2.5


def test_logprobs_and_their_sum_end_with_the_token_that_completed_a_stop_string() -> None:
    token_ids = ids("one two three")
    found = [TokenLogprobs(-1.0, 1, [], []) for _ in token_ids]
    delta = stream(logprobs=0, stop=["two"]).push(RequestOutput(1, token_ids, None, None, found))
    assert delta.text == "one "
    assert delta.logprobs is not None
    assert (delta.num_tokens, len(delta.logprobs), delta.cumulative_logprob) == (2, 2, -2.0)


def test_logprobs_that_are_no_numbers_are_null_in_json() -> None:
    found = [TokenLogprobs(-math.inf, 9, [5], [math.nan])]
    delta = stream(logprobs=1).push(RequestOutput(1, [4], None, None, found))
    assert delta.logprobs is not None
    assert [item["logprob"] for item in delta.logprobs[0].values()] == [None, None]
    json.dumps(delta.logprobs, allow_nan=False)


def test_without_the_parameter_there_are_no_logprobs() -> None:
    delta = stream().push(RequestOutput(1, ids("a")))
    assert (delta.logprobs, delta.cumulative_logprob) == (None, None)


def test_an_error_comes_with_the_tokens_before_it() -> None:
    error = ("UNAVAILABLE", "the engine restarts")
    delta = stream().push([RequestOutput(1, ids("a")), RequestOutput(1, [], error=error)])
    assert (delta.text, delta.error, delta.finish_reason) == ("a", error, None)
