"""Words that must not be generated, as the token sequences that spell them."""

from __future__ import annotations

from collections.abc import Sequence

from inferx.errors import InvalidArgument
from inferx.text.tokenizer import Tokenizer


def bad_words_token_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each word as it begins a text and, where that is another first token and as many of them,
    as it follows a space, as vLLM does. Raises InvalidArgument for a word of white space only."""
    sequences: list[tuple[int, ...]] = []
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise InvalidArgument(f"bad_words has {word!r}: expected words, not white space")
        first = tuple(tokenizer.encode(bare, add_special_tokens=False))
        inside = tuple(tokenizer.encode(f" {bare}", add_special_tokens=False))
        sequences.append(first)
        if len(inside) == len(first) and inside[0] != first[0]:
            sequences.append(inside)
    return tuple(sequences)
