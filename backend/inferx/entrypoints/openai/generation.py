"""Generation: a Triton request for each prompt of an HTTP request, together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from inferx_client import AsyncClient, Completion

from inferx.entrypoints.openai.backlog import Backlog, Overflow
from inferx.entrypoints.openai.protocol import Prompt
from inferx.entrypoints.openai.reading import Reading

T = TypeVar("T")


@dataclass
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts', found in the prefix cache
    completion_tokens: int = 0

    @property
    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Generation:
    """The choices of all prompts are counted through, those of the first prompt first.

    Cancelling one of its coroutines cancels its Triton requests.
    """

    def __init__(
        self,
        client: AsyncClient,
        prompts: Sequence[Prompt],
        sampling: Mapping[str, Any],
        reading: Reading,
        *,
        request_id: str,
        echo: bool = False,
        count_tokens: bool = True,
    ) -> None:
        """Without `count_tokens` there is no usage: each count costs a tensor in every response."""
        details = ["finish_reason"]
        if count_tokens:
            details += ["num_input_tokens", "num_output_tokens", "num_cached_tokens"]
        if "logprobs" in sampling:
            details.append("logprobs")
        self._client = client
        self._prompts = prompts
        self._reading = reading
        self._options = {
            **sampling,
            "exclude_input": not echo,
            "details": details,
        }
        self._request_id = request_id
        self._num_choices = int(sampling.get("n", 1))
        self.usage = Usage()

    async def whole(self) -> list[Completion]:
        """A completion for each prompt. Raises InferenceError."""
        completions = await _together(
            [
                self._client.generate(prompt, **self._options, request_id=self._id(index))
                for index, prompt in enumerate(self._prompts)
            ]
        )
        for completion in completions:
            self.usage.prompt_tokens += completion.num_input_tokens or 0
            self.usage.cached_tokens += completion.num_cached_tokens or 0
            self.usage.completion_tokens += sum(completion.num_output_tokens)
        return completions

    async def stream(self, backlog: Backlog) -> None:
        """Puts all that comes into the backlog, and how it ends."""
        failure = None
        try:
            await _together([self._follow(i, backlog) for i in range(len(self._prompts))])
        except Overflow:
            pass  # the backlog knows
        except Exception as error:
            failure = error
        finally:
            backlog.close(failure)

    async def _follow(self, index: int, backlog: Backlog) -> None:
        first_choice = index * self._num_choices
        prompt_tokens = None
        stream = self._client.stream(
            self._prompts[index],
            **self._options,
            read_time=round(self._reading.time_for_each() * 1e6),  # microseconds
            request_id=self._id(index),
        )
        async with aclosing(stream):  # type: ignore[type-var]
            async for delta in stream:
                if prompt_tokens is None:
                    prompt_tokens = delta.num_input_tokens or 0
                    self.usage.prompt_tokens += prompt_tokens
                    self.usage.cached_tokens += delta.num_cached_tokens or 0
                self.usage.completion_tokens += delta.num_output_tokens or 0
                # A response of several choices has empty elements for all but one
                if delta.text or delta.logprobs or delta.finish_reason:
                    self._reading.count()
                    backlog.put(first_choice + delta.choice, delta)

    def _id(self, index: int) -> str:
        return self._request_id if len(self._prompts) == 1 else f"{self._request_id}-{index}"


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results; where one fails, or the caller is cancelled, the others are cancelled."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
