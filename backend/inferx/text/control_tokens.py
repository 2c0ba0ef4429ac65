"""The control tokens of a vocabulary, and where their texts occur."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tokenizers import AddedToken


class Found(NamedTuple):
    """A control token's text at [start, end); the flags are about white space around it, which
    belongs to the token."""

    start: int
    end: int
    token_id: int
    lstrip: bool
    rstrip: bool


class ControlTokens:
    """The special ones among the tokens that a tokenizer finds whole in a text.

    The unknown token is one where its text occurs, but none where it stands for a character that
    has no token.
    """

    def __init__(self, added: Mapping[int, AddedToken], unknown_id: int | None) -> None:
        self._by_text = {
            token.content: (token_id, token) for token_id, token in added.items() if token.special
        }
        self.ids = frozenset(token_id for token_id, _ in self._by_text.values())
        self._counted = self.ids - {unknown_id}
        self.first_characters = frozenset(text[0] for text in self._by_text)
        # The library looks for all added tokens at once and takes the longest
        self._any_added = _alternatives([token.content for token in added.values()])
        starts = re.escape("".join(sorted(self.first_characters)))
        self._beginnings = (
            re.compile(f"(?={_alternatives(list(self._by_text)).pattern})[{starts}]")
            if self._by_text
            else _alternatives([])
        )

    def find(self, text: str) -> Iterator[Found]:
        for match in self._any_added.finditer(text):
            if found := self._by_text.get(match[0]):
                token_id, token = found
                yield Found(match.start(), match.end(), token_id, token.lstrip, token.rstrip)

    def among(self, token_ids: Sequence[int]) -> list[int]:
        """Those of the ids that are control tokens, in order."""
        return [token_id for token_id in token_ids if token_id in self._counted]

    def ids_in(self, text: str) -> list[int]:
        """`among` of the ids that the text should give."""
        return self.among([found.token_id for found in self.find(text)])

    def disguise(self, text: str, stand_ins: Mapping[str, str]) -> str:
        """The text with the first character of every control token in it exchanged."""
        return self._beginnings.sub(lambda match: stand_ins[match[0]], text)


def _alternatives(texts: Sequence[str]) -> re.Pattern[str]:
    """Matches any of the texts, the longest that fits; without any, nothing."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})" if texts else "(?!)")
