"""The bytes that each token contributes to the text.

The decoders of the served models work token by token, up to two things that the detokenizer does:
joining bytes to characters, and dropping the space before the first word. So decoding is a
lookup, the joining of bytes and UTF-8, which is fast and works on any piece of a sequence.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from tokenizers import Tokenizer as HFTokenizer

_BYTES_OF_UTF8 = frozenset({*range(0xC0), *range(0xC2, 0xF5)})
_MAX_VOCAB = 1 << 22  # tokens; the largest published vocabularies have some 2^18
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedTokenizer(ValueError):
    """What its tokens contribute to a text cannot be told; one clause that says why."""


class TokenBytes(NamedTuple):
    """`by_id[i]` are token i's bytes, b"" for ids that are no token."""

    by_id: list[bytes]
    strips_first_space: bool  # one space at the beginning of the whole text is not part of it
    per_byte: bool  # bytes that are no UTF-8 show as one U+FFFD each, not one a sequence
    missing: bytes  # bytes of valid UTF-8 that no token stands for, and that are silently dropped


class _Spelling(NamedTuple):
    """How tokens are written in the vocabulary."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()  # as written, as meant
    strips_first_space: bool = False

    def bytes_of(self, token: str) -> bytes:
        if self.byte_level:
            # Added tokens are spelled plainly: a character outside of the alphabet tells
            try:
                return bytes(map(_BYTE_OF.__getitem__, token))
            except KeyError:
                return token.encode("utf-8")
        for written, meant in self.replacements:
            token = token.replace(written, meant)
        if self.byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        return token.encode("utf-8")


def token_bytes(tokenizer: HFTokenizer) -> TokenBytes:
    """Raises UnsupportedTokenizer."""
    spelling = _spelling(tokenizer)
    tokens = tokenizer.get_vocab(with_added_tokens=True)
    if not tokens:
        raise UnsupportedTokenizer("its tokenizer has no tokens")
    highest = max(tokens.values())
    if highest >= _MAX_VOCAB:
        raise UnsupportedTokenizer(
            f"its tokenizer has the token id {highest}: expected ids below {_MAX_VOCAB}"
        )
    by_id = [b""] * (highest + 1)
    for token, token_id in tokens.items():
        by_id[token_id] = spelling.bytes_of(token)
    missing = _BYTES_OF_UTF8.difference(*(shown for shown in by_id if len(shown) == 1))
    return TokenBytes(
        by_id,
        strips_first_space=spelling.strips_first_space,
        per_byte=spelling.byte_fallback,
        missing=bytes(missing) if spelling.byte_level else b"",
    )


def _spelling(tokenizer: HFTokenizer) -> _Spelling:
    """Reads the decoder's steps; those after "Fuse" see the whole text, the others one token."""
    if tokenizer.decoder is None:
        raise UnsupportedTokenizer("its tokenizer has no decoder")
    decoder = json.loads(tokenizer.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    spelling, fused = _Spelling(), False
    for step in steps:
        match step:
            case {"type": "ByteLevel"} if len(steps) == 1:
                spelling = spelling._replace(byte_level=True)
            case {"type": "ByteFallback"} if not fused:
                spelling = spelling._replace(byte_fallback=True)
            case {"type": "Replace", "pattern": {"String": written}, "content": meant} if (
                len(written) == 1
            ):
                pairs = (*spelling.replacements, (written, meant))
                spelling = spelling._replace(replacements=pairs)
            case {"type": "Metaspace", "replacement": written}:
                strips = step.get("prepend_scheme", "always") != "never"
                pairs = (*spelling.replacements, (written, " "))
                spelling = spelling._replace(replacements=pairs, strips_first_space=strips)
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if fused:
                spelling = spelling._replace(strips_first_space=True)
            case _:
                raise UnsupportedTokenizer(
                    f"its tokenizer's decoder has the step {step['type']!r} where it is not read"
                )
    return spelling


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte: its own where that is printable in Latin-1, else
    the next one from U+0100 on (`bytes_to_unicode` of openai/gpt-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()
