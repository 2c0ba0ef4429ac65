"""Text in streams: stop strings, characters of several tokens, spaces, and how it ends."""

import json

import pytest
from served import Served

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def deltas(model: Served, prompt: str | list[int], **options: object) -> list[str]:
    return [delta.text for delta in model.stream(prompt, **options)]


def test_a_stop_string_in_an_alphabet_never_shows_a_piece_of_itself(smollm2: Served) -> None:
    prompt = "ABCDEFGHIJKLMNOPQRSTUVWXYZ\nABCDEFGHIJKLMNOPQRSTUVWXYZ\nABC"
    options = {"max_tokens": 24, "stop": ["DEFGHIJ"]}
    assert "DEFGHIJ" in smollm2.generate(prompt, max_tokens=24).text
    pieces = deltas(smollm2, prompt, **options)
    shown = ""
    for piece in pieces:
        shown += piece
        assert not any(shown.endswith("DEFGHIJ"[:size]) for size in range(1, 8)), pieces
    answer = smollm2.generate(prompt, **options)
    assert (answer.text, answer.finish_reasons) == (shown, ["stop"])


@pytest.mark.parametrize("stop", [" sea did, every", "green cover", "ry hour", "e", "\n"])
def test_a_stop_string_cuts_a_stream_exactly_before_it(synthetic: Served, stop: str) -> None:
    whole = synthetic.generate("Once", max_tokens=120).text
    answer = synthetic.streamed("Once", max_tokens=120, stop=[stop, "never written"])
    assert answer.text == whole[: whole.index(stop)]
    assert answer.finish_reasons == ["stop"]
    shown = synthetic.streamed(
        "Once", max_tokens=120, stop=stop, include_stop_str_in_output=True
    ).text
    assert shown == answer.text + stop


def test_a_beginning_of_a_stop_string_is_shown_when_the_text_ends(synthetic: Served) -> None:
    whole = synthetic.generate("Once", max_tokens=9)
    answer = synthetic.streamed("Once", max_tokens=9, stop=[whole.text[-6:] + "and no further"])
    assert answer.text == whole.text
    assert answer.finish_reasons == ["length"]


def test_logprobs_have_an_entry_for_each_token_where_a_stop_string_cut_the_text(
    smollm2: Served,
) -> None:
    details = ("finish_reason", "logprobs", "num_output_tokens", "cumulative_logprob")
    prompt = "One two three four five"
    stop = smollm2.generate(prompt, max_tokens=16).text[20:24]
    for ask in (smollm2.generate, smollm2.streamed):
        answer = ask(prompt, max_tokens=16, stop=[stop], logprobs=1, details=details)
        assert answer.finish_reasons == ["stop"]
        assert len(answer.logprobs[0]) == answer.num_output_tokens[0]
        first = [next(iter(entry.values()))["logprob"] for entry in answer.logprobs[0]]
        assert answer.cumulative_logprobs[0] == pytest.approx(sum(first), abs=1e-3)


@pytest.mark.parametrize(
    "prompt",
    [
        "今天天气如何？今天天气很好。今天天气如何？",
        "😀😃😄 👩‍👩‍👧‍👦 🇫🇷 😀😃😄 👩‍👩‍👧‍👦 🇫🇷 😀😃😄",
        "naïve café, Zoë, Ünïcödé, naïve café, Zoë,",
        "Привет, мир! Привет, мир! Привет,",
    ],
)
def test_a_stream_never_ends_inside_a_character_and_equals_the_whole_text(
    smollm2: Served, prompt: str
) -> None:
    whole = smollm2.generate(prompt, max_tokens=32)
    pieces = deltas(smollm2, prompt, max_tokens=32)
    assert "".join(pieces) == whole.text
    assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])
    assert any(ord(character) > 127 for character in whole.text)


@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_stream_as_the_text_that_is_sent_whole(byte_model: Served, seed: int) -> None:
    options = {"max_tokens": 64, "temperature": 1.5, "seed": seed, "ignore_eos": True}
    whole = byte_model.generate("é" * 4, **options)
    streamed = byte_model.streamed("é" * 4, **options)
    assert streamed.text == whole.text
    assert streamed.num_output_tokens == whole.num_output_tokens == [64]


def test_spaces_survive_in_streams(smollm2: Served, synthetic: Served) -> None:
    for model, prompt in ((synthetic, "Once"), (smollm2, "The quick brown fox")):
        pieces = deltas(model, prompt, max_tokens=40)
        text = "".join(pieces)
        assert text == model.generate(prompt, max_tokens=40).text
        assert text.startswith(" ")
        assert text.count(" ") > 15


def test_the_prompt_comes_before_the_text_only_where_it_is_wanted(smollm2: Served) -> None:
    prompt = " Two  spaces, a tab\tand 今天 "
    for ask in (smollm2.generate, smollm2.streamed):
        with_prompt = ask(prompt, max_tokens=4, exclude_input=False).text
        assert with_prompt == prompt + ask(prompt, max_tokens=4).text


def test_the_end_is_length_where_max_tokens_ran_out_and_stop_where_the_model_ended(
    smollm2: Served,
) -> None:
    prompt = CHAT.format("What is the capital of France?")
    for ask in (smollm2.generate, smollm2.streamed):
        cut = ask(prompt, max_tokens=2)
        assert (cut.finish_reasons, cut.num_output_tokens) == (["length"], [2])
        ended = ask(prompt, max_tokens=64)
        assert ended.finish_reasons == ["stop"]
        assert "Paris" in ended.text
        assert "<|im_end|>" not in ended.text
        exact = ask(prompt, max_tokens=ended.num_output_tokens[0])
        assert exact.finish_reasons == ["stop"], "the last token allowed was the end token"


def test_finish_reason_is_none_before_the_end_of_a_stream(synthetic: Served) -> None:
    reasons = [delta.finish_reason for delta in synthetic.stream("Once", max_tokens=5)]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]


def test_logprobs_are_json_without_infinities(smollm2: Served) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    status, answer = smollm2.post(
        {
            "text_input": "The sky is",
            "return_logprobs": True,
            "parameters": {"max_tokens": 4, "logprobs": 20, "min_tokens": 4, "temperature": 1e-4},
        }
    )
    assert status == 200
    entries = json.loads(answer["logprobs"], parse_constant=refuse)
    assert len(entries) == 4
    for entry in entries:
        assert 20 <= len(entry) <= 21
        for token_id, found in entry.items():
            assert 0 <= int(token_id) < 49152
            assert set(found) == {"logprob", "rank", "decoded_token"}
            assert found["logprob"] is None or found["logprob"] <= 0
