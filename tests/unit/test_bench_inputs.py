"""Traces, prompts and workloads: what is sent, and what a damaged file is answered with."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from inferx_client.bench import BenchError
from inferx_client.bench.loads import replay
from inferx_client.bench.prompts import BLOCK_TOKENS, Request, Words, of_file, synthetic
from inferx_client.bench.traces import Recorded, read_trace
from inferx_client.bench.workloads import note, question, requests_of

MOONCAKE = (
    '{"timestamp": 1500, "input_length": 600, "output_length": 20, "hash_ids": [0, 7]}\n'
    '{"timestamp": 4500, "input_length": 8, "output_length": 3, "hash_ids": [9]}\n'
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,GPT-4,1087,0,1087,API log\n"
    "118,ChatGPT,417,276,693,Conversation log\n"
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.2299600,110,27\n"
)


def written(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        (MOONCAKE, [Recorded(0, 600, 20, (0, 7)), Recorded(3, 8, 3, (9,))]),
        (BURSTGPT, [Recorded(0, 472, 18), Recorded(113, 417, 276)]),
        (AZURE, [Recorded(0, 4808, 10), Recorded(0.25, 110, 27)]),
    ],
    ids=["mooncake", "burstgpt", "azure"],
)
def test_each_form_is_read(tmp_path: Path, text: str, requests: list[Recorded]) -> None:
    found = read_trace(written(tmp_path, text))
    assert [one.at for one in found] == pytest.approx([one.at for one in requests], abs=1e-6)
    assert [(one.input_tokens, one.output_tokens, one.blocks) for one in found] == [
        (one.input_tokens, one.output_tokens, one.blocks) for one in requests
    ]


def test_azure_moments_may_have_a_zone_and_no_fraction(tmp_path: Path) -> None:
    text = AZURE.splitlines()[0] + (
        "\n2024-05-10 00:00:01+00:00,1,1\n2024-05-10 00:00:00.009930+00:00,2,2\n"
    )
    found = read_trace(written(tmp_path, text))
    assert [one.input_tokens for one in found] == [2, 1]  # in order of time
    assert found[1].at == pytest.approx(0.99007)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (MOONCAKE + "{broken\n", "line 3: this is not JSON"),
        (MOONCAKE + "[1]\n", "line 3: this is not a JSON object"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 2}\n', "line 3: 'output_length' is missing"),
        ('{"timestamp": -1, "input_length": 2, "output_length": 1}\n', "line 1: timestamp is -1"),
        (
            '{"timestamp": 1, "input_length": 2.5, "output_length": 1}\n',
            "line 1: input_length is 2.5, not a whole number",
        ),
        (
            '{"timestamp": 1, "input_length": 2, "output_length": 1, "hash_ids": ["a"]}\n',
            "line 1: hash_ids is not a list of integers",
        ),
        (BURSTGPT + "200,GPT-4,many,3,3,API log\n", "line 5: Request tokens is 'many'"),
        (BURSTGPT + "200,GPT-4\n", "line 5: 2 columns where Timestamp, Request tokens"),
        (AZURE + "yesterday,1,2\n", "line 4: TIMESTAMP is 'yesterday', not a date and time"),
        (AZURE + "2023-11-16 18:17:04,nan,2\n", "line 4: ContextTokens is 'nan'"),
        ("a,b\n1,2\n", "line 1: neither an object of Mooncake's JSONL nor a CSV header with"),
        ("", "line 1: neither"),
        ("x" * 200_000, "line 1: field larger than field limit"),
        (AZURE + "x" * 200_000, "line 4: field larger than field limit"),
        ('{"timestamp":' * 100_000, "line 1: it is nested too deeply"),
        (
            f'{{"timestamp": 1{"0" * 400}, "input_length": 2, "output_length": 1}}\n',
            "line 1: int too large to convert to float",
        ),
        (AZURE.splitlines()[0] + "\n", "there is no request with an answer in it"),
    ],
)
def test_a_damaged_trace_is_one_sentence_that_names_the_line(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(BenchError) as error:
        read_trace(written(tmp_path, text))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="trace none: No such file"):
        read_trace(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BenchError, match="trace bytes: it is not UTF-8 text"):
        read_trace(tmp_path / "bytes")


async def two_more(text: str) -> int:
    """A server that adds two tokens, and for which words with a g are two tokens each."""
    return 2 + sum(1 + ("g" in word) for word in text.split())


@pytest.fixture
def words() -> Words:
    return asyncio.run(Words.of(two_more))


@pytest.mark.parametrize("tokens", [3, 4, 100])
def test_synthetic_prompts_have_exactly_the_tokens_that_were_asked_for(
    words: Words, tokens: int
) -> None:
    source = synthetic(words, tokens, 9, seed=5)
    for index in range(20):
        assert asyncio.run(two_more(source(index).prompt)) == tokens
    assert source(0) == source(0)
    assert source(0).output_tokens == 9


def test_synthetic_prompts_differ(words: Words) -> None:
    source = synthetic(words, 64, 9, seed=5)
    assert len({source(index).prompt for index in range(50)}) == 50
    assert source(0) != synthetic(words, 64, 9, seed=6)(0)


def test_a_prompt_that_cannot_be_so_short_is_refused(words: Words) -> None:
    with pytest.raises(BenchError, match="3 is the shortest"):
        words.text(2, seed=0)


def test_a_tokenizer_without_whole_words_is_refused() -> None:
    async def letters(text: str) -> int:
        return len(text)

    with pytest.raises(BenchError, match="--prompts FILE"):
        asyncio.run(Words.of(letters))


def test_equal_blocks_of_a_trace_are_equal_text(words: Words) -> None:
    tokens = 2 + 2 * BLOCK_TOKENS
    one = words.of_blocks(tokens, [4, 5], seed=1).split()
    other = words.of_blocks(tokens + 30, [4, 6], seed=2).split()
    assert (len(one), len(other)) == (tokens - 2, tokens + 28)
    assert one[:BLOCK_TOKENS] == other[:BLOCK_TOKENS]
    assert one[BLOCK_TOKENS + 1 :] != other[BLOCK_TOKENS + 1 : len(one)]


def test_a_replay_keeps_gaps_lengths_and_limits(words: Words) -> None:
    trace = [Recorded(0, 40, 9), Recorded(4, 400, 900), Recorded(8, 5, 5), Recorded(90, 5, 5)]
    load = replay(
        trace, words, speed=2, seconds=30, count=None, max_input_tokens=100,
        max_output_tokens=50, warm_up=None, seed=0,
    )  # fmt: skip
    assert [one.at for one in load.arrivals] == [0, 2, 4]
    sizes = [asyncio.run(two_more(one.request.prompt)) for one in load.arrivals]
    assert sizes == [40, 100, 5]
    assert [one.request.output_tokens for one in load.arrivals] == [9, 50, 5]


def test_prompts_of_a_file_are_taken_in_turn(tmp_path: Path) -> None:
    lines = of_file(written(tmp_path, "one\n\ntwo\n", "p.txt"), 7)
    assert [lines(index) for index in range(3)] == [
        Request("one", 7), Request("two", 7), Request("one", 7),
    ]  # fmt: skip
    objects = written(tmp_path, '{"prompt": "a", "output_tokens": 3}\n{"prompt": "b"}', "p.jsonl")
    assert [of_file(objects, 7)(index) for index in (0, 1)] == [Request("a", 3), Request("b", 7)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"prompt": "a"}\n{"text": "b"}', 'line 2: an object with a text "prompt"'),
        ("{", "line 1: this is not JSON"),
        ('{"prompt": "a", "output_tokens": 0}', "line 1: output_tokens is 0"),
        ("\n", "there is no prompt in it"),
    ],
)
def test_a_damaged_file_of_prompts_names_the_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(BenchError) as error:
        of_file(written(tmp_path, text, "p.jsonl"), 7)
    assert sentence in str(error.value)


def test_finance_asks_86_characters_behind_a_context_of_4096_tokens(words: Words) -> None:
    draw = random.Random(0)
    assert {len(question(draw)) for _ in range(500)} == {86}
    source = requests_of("finance", words, context=None, output_tokens=None, seed=0)
    one, other = source(0), source(1)
    handbook, asked = one.prompt.split("\n\n")
    assert len(asked) == 86
    assert other.prompt.startswith(handbook)  # shared, so that a prefix cache helps
    assert other.prompt != one.prompt
    assert asyncio.run(two_more(handbook)) + 64 + one.output_tokens == 4096


def test_medical_notes_name_codes_drugs_and_sometimes_a_hot_term() -> None:
    draw = random.Random(0)
    notes = [note(draw) for _ in range(400)]
    assert all("ICD-10" in one and "; takes " in one for one in notes)
    hot = sum("心肌梗死" in one or "阿司匹林" in one for one in notes) / len(notes)
    assert hot == pytest.approx(0.3, abs=0.08)
