"""Chat completions: messages to a prompt, and the answer's shape."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from inferx_client import Completion

from inferx.entrypoints.openai.answer import Answer
from inferx.entrypoints.openai.backlog import Part
from inferx.entrypoints.openai.errors import invalid
from inferx.entrypoints.openai.logprobs import Entry, chat_logprobs
from inferx.entrypoints.openai.protocol import ChatRequest
from inferx.errors import InvalidArgument
from inferx.text.chat import encode_chat
from inferx.text.tokenizer import Tokenizer


async def chat_prompt(request: ChatRequest, tokenizer: Tokenizer, executor: Executor) -> list[int]:
    """The prompt's token ids. A template may run for seconds, hence elsewhere. Raises ApiError."""

    def encode() -> list[int]:
        return encode_chat(
            tokenizer,
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            **request.variables,
        )

    try:
        return await asyncio.get_running_loop().run_in_executor(executor, encode)
    except InvalidArgument as error:
        raise invalid(str(error), "messages") from None


class ChatAnswer(Answer):
    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, request: ChatRequest, tokenizer: Tokenizer) -> None:
        super().__init__(request)
        self._tokenizer = tokenizer
        self._top = request.logprobs
        self._begun: set[int] = set()

    def choices(self, completions: Sequence[Completion]) -> list[dict[str, Any]]:
        (completion,) = completions
        return [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": self._logprobs(completion.logprobs[index]),
                "finish_reason": completion.finish_reasons[index],
            }
            for index, text in enumerate(completion.texts)
        ]

    def chunk_choice(self, part: Part) -> dict[str, Any]:
        delta = {"content": part.text}
        if part.choice not in self._begun:
            self._begun.add(part.choice)
            delta = {"role": "assistant", **delta}
        return {
            "index": part.choice,
            "delta": delta,
            "logprobs": self._logprobs(part.logprobs),
            "finish_reason": part.finish_reason,
        }

    def _logprobs(self, entries: Sequence[Entry]) -> dict[str, Any] | None:
        if self._top is None:
            return None
        return chat_logprobs(self._tokenizer, entries, self._top)
