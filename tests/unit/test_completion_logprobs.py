"""Where a completion's tokens begin in its text."""

from __future__ import annotations

from typing import Any

import pytest
from inferx.entrypoints.openai.backlog import Part
from inferx.entrypoints.openai.completions import CompletionAnswer
from inferx.entrypoints.openai.protocol import completion_request
from tokenizing import smollm2


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
