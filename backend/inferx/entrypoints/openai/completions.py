"""Completions of plain prompts: the answer's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferx_client import Completion

from inferx.engine.sampling import read_boolean
from inferx.entrypoints.openai.answer import Answer
from inferx.entrypoints.openai.backlog import Part
from inferx.entrypoints.openai.logprobs import CompletionLogprobs, Entry
from inferx.entrypoints.openai.protocol import CompletionRequest
from inferx.text.tokenizer import Tokenizer


class CompletionAnswer(Answer):
    prefix = "cmpl"
    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, request: CompletionRequest, tokenizer: Tokenizer) -> None:
        super().__init__(request)
        self._tokenizer = tokenizer
        self._wanted = request.logprobs is not None
        skips_special = request.sampling.get("skip_special_tokens", True)
        self._skips_special = read_boolean("skip_special_tokens", skips_special)
        self._logprobs: dict[int, CompletionLogprobs] = {}  # by choice

    def choices(self, completions: Sequence[Completion]) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = []
        for completion in completions:
            for index, text in enumerate(completion.texts):
                part = Part(
                    len(shown), text, completion.logprobs[index], completion.finish_reasons[index]
                )
                shown.append(self.chunk_choice(part))
        return shown

    def chunk_choice(self, part: Part) -> dict[str, Any]:
        return {
            "index": part.choice,
            "text": part.text,
            "logprobs": self._logprobs_of(part.choice, part.logprobs),
            "finish_reason": part.finish_reason,
        }

    def _logprobs_of(self, choice: int, entries: Sequence[Entry]) -> dict[str, Any] | None:
        if not self._wanted:
            return None
        if choice not in self._logprobs:
            self._logprobs[choice] = CompletionLogprobs(
                self._tokenizer, skip_special_tokens=self._skips_special
            )
        return self._logprobs[choice].next(entries)
