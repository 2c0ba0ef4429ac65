"""Admission: a Triton request is read, tokenized and given to the engine, or answered at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec

from inferx.config import EngineConfig
from inferx.engine.client import EngineClient
from inferx.engine.limits import check_request
from inferx.engine.sampling import SamplingParams
from inferx.errors import InvalidArgument, RequestError, Unavailable
from inferx.text.bad_words import bad_words_token_ids
from inferx.text.stream import TextStream
from inferx.text.tokenizer import Tokenizer
from inferx.triton.cancellation import Canceller
from inferx.triton.inflight import InFlight
from inferx.triton.logs import internal_error
from inferx.triton.outbox import Outbox
from inferx.triton.pace import Pace
from inferx.triton.protocol import GenerateRequest, read_request
from inferx.triton.responder import Responder
from inferx.triton.tracing import RequestTracing

LONG_TEXT = 1 << 14  # characters: tokenizing more takes over 10 ms, and others would wait for it
_THREADS = 2  # that tokenize such texts


class Admission:
    def __init__(
        self,
        config: EngineConfig,
        engine: EngineClient,
        tokenizer: Tokenizer,
        responder: Responder,
        in_flight: InFlight,
        canceller: Canceller,
        pace: Pace,
        tracing: RequestTracing | None,
        *,
        decoupled: bool,
    ) -> None:
        self._config = config
        self._engine = engine
        self._tokenizer = tokenizer
        self._responder = responder
        self._in_flight = in_flight
        self._canceller = canceller
        self._pace = pace
        self._tracing = tracing
        self._decoupled = decoupled
        self._aside = ThreadPoolExecutor(_THREADS, thread_name_prefix="inferx-long-texts")
        self._room_aside = threading.Semaphore(_THREADS + config.max_queue_size)

    def admit(self, triton_request: Any) -> None:
        """Takes over a pb_utils.InferenceRequest, which is answered through its outbox alone."""
        outbox = self._responder.outbox(triton_request)
        self._in_flight.add(outbox)
        with _answering(outbox):
            request = read_request(triton_request)
            if self._tracing is not None:
                self._tracing.begin(outbox, request)
            self._check(request)
            outbox.deadline = outbox.arrived + min(
                request.timeout or self._config.request_timeout, self._config.request_timeout
            )
            self._canceller.watch(outbox)
            if _num_characters(request) > LONG_TEXT:
                self._set_aside(outbox, request)
            else:
                self._submit(outbox, request)

    def close(self) -> None:
        """Long texts that still wait are left; their requests have been answered by now."""
        self._aside.shutdown(wait=False, cancel_futures=True)

    def _check(self, request: GenerateRequest) -> None:
        """What can be said before anything is made of the prompt. Raises InvalidArgument."""
        if request.stream and not self._decoupled:
            raise InvalidArgument(
                "stream is true: this model is configured with `decoupled: false`, which sends one "
                "response a request; leave stream out, or change the configuration"
            )
        if request.text is not None:
            self._refuse_hopeless(request.text)
        if request.input_ids is not None:
            check_request(request.input_ids, [request.sampling], self._engine.info)

    def _set_aside(self, outbox: Outbox, request: GenerateRequest) -> None:
        """The engine does not know of these yet: they have a queue of their own, as long as its.

        Raises Unavailable.
        """
        if not self._room_aside.acquire(blocking=False):
            raise Unavailable(
                "the queue is full: as many long prompts as max_queue_size, "
                f"{self._config.max_queue_size}, wait to be tokenized; try again later"
            )
        self._aside.submit(self._submit_aside, outbox, request)

    def _submit_aside(self, outbox: Outbox, request: GenerateRequest) -> None:
        try:
            with _answering(outbox):
                if not outbox.closed:
                    self._submit(outbox, request)
        finally:
            self._room_aside.release()

    def _submit(self, outbox: Outbox, request: GenerateRequest) -> None:
        prompt_token_ids = self._prompt_token_ids(request)
        choices = self._choices(request.sampling)
        pace = self._pace.stream(request.read_time) if request.stream else None
        outbox.prepare(
            request,
            [TextStream(self._tokenizer, params, prompt_token_ids) for params in choices],
            len(prompt_token_ids),
            self._repeated_prompt(request, prompt_token_ids),
            pace,
        )
        outbox.open(self._engine.submit(prompt_token_ids, choices, outbox.put))
        if outbox.closed:  # cancelled meanwhile, when these were not known
            self._engine.abort(outbox.uids)
            if pace is not None:
                pace.end()

    def _prompt_token_ids(self, request: GenerateRequest) -> list[int]:
        if request.input_ids is not None:
            return request.input_ids
        assert request.text is not None  # the protocol takes one of the two
        return self._tokenizer.encode(
            request.text, parse_special_tokens=request.parse_special_tokens
        )

    def _refuse_hopeless(self, text: str) -> None:
        """Tokenizing megabytes takes seconds."""
        most, longest = self._engine.info.max_model_len, self._tokenizer.max_token_bytes
        if len(text) > most * longest:
            raise InvalidArgument(
                f"the prompt has {len(text)} characters: the model takes at most {most} tokens, "
                f"of at most {longest} bytes each"
            )

    def _repeated_prompt(self, request: GenerateRequest, prompt_token_ids: list[int]) -> str:
        """What every choice's text begins with."""
        if request.exclude_input_in_output:
            return ""
        if request.text is not None:
            return request.text
        return self._tokenizer.decode_prompt(
            prompt_token_ids, skip_special_tokens=request.sampling.skip_special_tokens
        )

    def _choices(self, params: SamplingParams) -> list[SamplingParams]:
        """One SamplingParams for each of `n` choices; a seed gives each one draws of its own."""
        if params.bad_words:
            banned = bad_words_token_ids(self._tokenizer, params.bad_words)
            params = msgspec.structs.replace(params, bad_words_token_ids=banned)
        if params.n == 1:
            return [params]
        replace = msgspec.structs.replace
        if params.seed is None:
            return [replace(params, n=1)] * params.n
        return [replace(params, n=1, seed=_int64(params.seed + index)) for index in range(params.n)]


@contextmanager
def _answering(outbox: Outbox) -> Iterator[None]:
    """What goes wrong within is the answer to the outbox's request."""
    try:
        yield
    except RequestError as error:
        outbox.fail(error)
    except Exception as error:
        outbox.fail(internal_error(error, outbox.id))


def _num_characters(request: GenerateRequest) -> int:
    """That have to be tokenized."""
    return len(request.text or "") + sum(map(len, request.sampling.bad_words))


def _int64(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63
