"""Prompts: synthetic ones of an exact number of tokens, and those of a file.

Synthetic text is made of common words that are one token each for the server's tokenizer. Which
ones are is asked of whoever counts: the server itself, or a tokenizer that was given.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inferx_client.bench.errors import BenchError

Count = Callable[[str], Awaitable[int]]  # tokens of a prompt

BLOCK_TOKENS = 512  # that one of Mooncake's hash ids stands for
_FEWEST_WORDS = 16
_FIRST = "the"
_COMMON = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city name team minute idea body back parent face level office door health "
    "person art war history party result change morning reason research girl guy moment air "
    "teacher force order paper space ground form event matter center table land river road summer "
    "winter letter market price value rate figure field garden window picture music color voice "
    "light sound answer bank board class cost course death effort energy field food heart image"
)


@dataclass(frozen=True)
class Request:
    """What is sent once."""

    prompt: str
    output_tokens: int


class RequestSource(Protocol):
    def __call__(self, index: int) -> Request:
        """The request with this number; the same number gives the same request."""


class Words:
    """Text of an exact number of tokens. `overhead`: tokens that the server adds to any prompt."""

    def __init__(self, words: Sequence[str], overhead: int) -> None:
        self._words = words
        self.overhead = overhead

    @classmethod
    async def of(cls, count: Count) -> Words:
        """Raises BenchError for a tokenizer that has too few of the words as one token."""

        async def exact(words: Sequence[str]) -> list[str]:
            if await count(" ".join([_FIRST, *words])) == base + len(words):
                return list(words)
            if len(words) == 1:
                return []
            half = len(words) // 2
            return [*await exact(words[:half]), *await exact(words[half:])]

        base = await count(_FIRST)
        found = await exact(sorted(set(_COMMON.split())))
        if len(found) < _FEWEST_WORDS:
            raise BenchError(
                f"only {len(found)} common English words are single tokens of this model: "
                "bring prompts of your own with --prompts FILE"
            )
        return cls(found, base - 1)

    def text(self, tokens: int, seed: object) -> str:
        """`tokens` tokens in all, the server's own among them.

        Raises BenchError for fewer than one word.
        """
        words = tokens - self.overhead
        if words < 1:
            raise BenchError(f"a prompt of {tokens} tokens: {self.overhead + 1} is the shortest")
        return self.join(words, seed)

    def join(self, words: int, seed: object) -> str:
        return " ".join(
            [_FIRST, *random.Random(repr(seed)).choices(self._words, k=max(0, words - 1))]
        )

    def of_blocks(self, tokens: int, blocks: Sequence[int], seed: object) -> str:
        """`tokens` tokens whose blocks of BLOCK_TOKENS are the same for the same ids."""
        words = tokens - self.overhead
        pieces: list[str] = [_FIRST]
        for block in blocks:
            pieces += random.Random(f"block {block}").choices(self._words, k=BLOCK_TOKENS)
        if len(pieces) < words:
            more = random.Random(repr(seed)).choices(self._words, k=words - len(pieces))
            pieces += more
        return " ".join(pieces[: max(1, words)])


def synthetic(words: Words, input_tokens: int, output_tokens: int, seed: int) -> RequestSource:
    """Every request another text of `input_tokens` tokens."""

    def request(index: int) -> Request:
        return Request(words.text(input_tokens, (seed, index)), output_tokens)

    return request


def of_file(path: Path, output_tokens: int) -> RequestSource:
    """Prompts in turn: a line each, or for .jsonl objects with `prompt` and perhaps
    `output_tokens`. Raises BenchError, which names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BenchError(f"prompts {path.name}: {reason}") from None
    read = _json_line if path.suffix == ".jsonl" else Request
    requests = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            requests.append(read(line, output_tokens))
        except ValueError as error:
            raise BenchError(f"prompts {path.name}, line {number}: {error}") from None
    if not requests:
        raise BenchError(f"prompts {path.name}: there is no prompt in it")
    return lambda index: requests[index % len(requests)]


def _json_line(line: str, output_tokens: int) -> Request:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        raise ValueError("this is not JSON") from None
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
        raise ValueError('an object with a text "prompt" is expected')
    tokens = entry.get("output_tokens", output_tokens)
    if type(tokens) is not int or tokens < 1:
        raise ValueError(f"output_tokens is {tokens!r}, not a number of 1 or more")
    return Request(entry["prompt"], tokens)
