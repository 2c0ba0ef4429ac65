"""Logprobs in the two shapes that OpenAI's chat and completions give them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inferx.text.tokenizer import Tokenizer

_LOWEST = -9999.0  # JSON has no infinity

Entry = Mapping[str, Mapping[str, Any]]  # id: logprob, rank; the sampled token first


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[Entry], top: int) -> dict[str, Any]:
    """`top`: how many of the likeliest tokens each position shows."""
    return {"content": [_position(tokenizer, entry, top) for entry in entries], "refusal": None}


def _position(tokenizer: Tokenizer, entry: Entry, top: int) -> dict[str, Any]:
    tokens = [(_token(tokenizer, int(token_id), found), found) for token_id, found in entry.items()]
    ranked = sorted((t for t in tokens if t[1]["rank"] <= top), key=lambda t: t[1]["rank"])
    return {**tokens[0][0], "top_logprobs": [token for token, _ in ranked]}


def _token(tokenizer: Tokenizer, token_id: int, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "token": found["decoded_token"],
        "logprob": _number(found["logprob"]),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _number(logprob: float | None) -> float:
    """None is what the server says for one that is not finite."""
    return _LOWEST if logprob is None else max(logprob, _LOWEST)


class CompletionLogprobs:
    """One choice's; keeps count of the text's length, since each token shows where it begins."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.control.ids if skip_special_tokens else ()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # characters

    def next(self, entries: Sequence[Entry]) -> dict[str, Any]:
        """Of the tokens that follow those of the last call."""
        shown: dict[str, Any] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for entry in entries:
            sampled = int(next(iter(entry)))
            named: dict[str, float] = {}
            for token_id, found in entry.items():
                # Of two tokens with one text, a letter and its byte, the first: sampled or likelier
                named.setdefault(self._name(int(token_id)), _number(found["logprob"]))
            name = self._name(sampled)
            shown["tokens"].append(name)
            shown["token_logprobs"].append(named[name])
            shown["top_logprobs"].append(named)
            shown["text_offset"].append(self._offset)
            if sampled not in self._hidden:
                self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(sampled)))
        return shown

    def _name(self, token_id: int) -> str:
        """A token's text; its bytes where they are no text by themselves, which keeps it apart
        from others of that kind."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
