"""Logprobs in OpenAI's shapes: where tokens begin, and which number a name has."""

from __future__ import annotations

import math
from typing import Any

import pytest
from inferx.entrypoints.openai.backlog import Part
from inferx.entrypoints.openai.completions import CompletionAnswer
from inferx.entrypoints.openai.logprobs import chat_logprobs
from inferx.entrypoints.openai.protocol import completion_request
from tokenizing import byte_fallback, piece, smollm2


@pytest.mark.parametrize(
    ("given", "offsets"),
    [({}, [0, 0]), ({"skip_special_tokens": "true"}, [0, 0]), ({"skip_special_tokens": 0}, [0, 10])]
    + [({"skip_special_tokens": text}, [0, 10]) for text in ("false", "False", "0")],
)
def test_a_control_token_counts_where_the_text_shows_it(
    given: dict[str, Any], offsets: list[int]
) -> None:
    tokenizer = smollm2()
    request = completion_request({"model": "m", "prompt": "hi", "logprobs": 0, **given})
    ids = tokenizer.encode("<|im_end|>hi", parse_special_tokens=True)
    assert len(ids) == 2
    entries = [{str(token): {"logprob": -1.0}} for token in ids]
    shown = CompletionAnswer(request, tokenizer).chunk_choice(Part(0, "", entries, None))
    assert shown["logprobs"]["text_offset"] == offsets


def completion_logprobs(*entries: dict[str, Any]) -> dict[str, Any]:
    request = completion_request({"model": "m", "prompt": "hi", "logprobs": 2})
    answer = CompletionAnswer(request, byte_fallback())
    return answer.chunk_choice(Part(0, "", list(entries), None))["logprobs"]


def test_of_two_tokens_with_one_text_the_sampled_one_counts() -> None:
    """SentencePiece has a letter as a piece and, beside it, as a byte."""
    letter, byte, other = piece("h"), 3 + ord("h"), piece("e")
    assert byte_fallback().token_bytes(byte) == b"h"
    shown = completion_logprobs(
        {
            str(letter): {"logprob": -0.5, "rank": 1},
            str(other): {"logprob": -1.0, "rank": 2},
            str(byte): {"logprob": -9.0, "rank": 3},
        }
    )
    assert shown["tokens"] == ["h"]
    assert shown["token_logprobs"] == [-0.5]
    assert shown["top_logprobs"] == [{"h": -0.5, "e": -1.0}]


@pytest.mark.parametrize("logprob", [None, -math.inf])
def test_a_logprob_that_is_not_finite_is_the_lowest_number(logprob: float | None) -> None:
    """Null is what the tensor interface says for one."""
    entry = {str(piece("h")): {"logprob": logprob, "rank": 1, "decoded_token": "h"}}
    assert completion_logprobs(entry)["token_logprobs"] == [-9999.0]
    assert completion_logprobs(entry)["top_logprobs"] == [{"h": -9999.0}]
    (shown,) = chat_logprobs(byte_fallback(), [entry], 1)["content"]
    token = {"token": "h", "logprob": -9999.0, "bytes": [ord("h")]}
    assert shown == {**token, "top_logprobs": [token]}


@pytest.mark.parametrize(("top", "shown"), [(0, []), (1, ["e"]), (2, ["e", "l"]), (20, None)])
def test_a_chat_shows_as_many_of_the_likeliest_as_were_asked_for_and_the_sampled_one_apart(
    top: int, shown: list[str] | None
) -> None:
    """The sampled token is among them where it is as likely."""
    ranks = {"h": 5, "l": 2, "e": 1}
    tokenizer = byte_fallback()
    entry = {
        str(piece(letter)): {"logprob": -float(rank), "rank": rank, "decoded_token": letter}
        for letter, rank in ranks.items()
    }
    (position,) = chat_logprobs(tokenizer, [entry], top)["content"]
    assert (position["token"], position["logprob"], position["bytes"]) == ("h", -5.0, [ord("h")])
    found = [one["token"] for one in position["top_logprobs"]]
    assert found == (["e", "l", "h"] if shown is None else shown)
