"""Token ids to text, a piece at a time.

The text of an output is what decode(prompt + output) has beyond the prompt's complete characters:
a character that the prompt begins and the output completes belongs to the output, and a leading
space that SentencePiece drops at the beginning of a text is dropped only where the prompt has no
text. Bytes that are no UTF-8 show as U+FFFD: one for each maximal subpart (Unicode 15, section
3.9) in byte-level vocabularies, one for each byte with SentencePiece's byte fallback, whose own
decoder this follows.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

_PER_BYTE = "inferx.replace_each_byte"
_MAX_INCOMPLETE = 3  # bytes of a character that lacks its last one


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_PER_BYTE, _replace_each_byte)
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Decodes one output. No text that `push` returns ends inside a character."""

    __slots__ = ("_decode", "_strip_space", "_token_bytes")

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        per_byte: bool = False,
        strips_first_space: bool = False,
        prompt_token_ids: Sequence[int] | None = None,
    ) -> None:
        """`token_bytes` by id, b"" for what is not shown. Without a prompt's ids, the output is
        taken to follow some text; with none of them (`()`), to be the whole text."""
        self._token_bytes = token_bytes
        self._decode = _Utf8Decoder(_PER_BYTE if per_byte else "replace").decode
        self._strip_space = False
        if prompt_token_ids is not None:
            tail = self._tail(prompt_token_ids)
            self._decode(tail)
            self._strip_space = strips_first_space and not tail

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        table = self._token_bytes
        try:
            data = b"".join([table[token_id] for token_id in token_ids])
        except IndexError:  # a row of the embedding that is no token
            data = b"".join([table[i] for i in token_ids if i < len(table)])
        text = self._decode(data)
        if self._strip_space and text:
            self._strip_space = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """An incomplete character at the end, as U+FFFD."""
        return self._decode(b"", True)

    def _tail(self, token_ids: Sequence[int]) -> bytes:
        """The last bytes of these tokens, enough for an incomplete character."""
        tail = b""
        for token_id in reversed(token_ids):
            if 0 <= token_id < len(self._token_bytes):
                tail = self._token_bytes[token_id] + tail
            if len(tail) >= _MAX_INCOMPLETE:
                break
        return tail
