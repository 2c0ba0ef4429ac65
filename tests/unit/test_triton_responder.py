"""What clients get of the engine's outputs: every token once, in order, and one final response."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferx.engine.messages import RequestOutput, RequestStart
from inferx.engine.plan import TokenLogprobs
from inferx.engine.sampling import SamplingParams
from inferx.errors import Cancelled, Unavailable
from inferx.text.stream import TextDelta, TextStream
from inferx.triton.logs import shown_id
from inferx.triton.outbox import Outbox
from inferx.triton.pace import Pace
from inferx.triton.protocol import GenerateRequest, ReturnFlags
from inferx.triton.responder import Responder
from tokenizing import smollm2, untimed
from triton_double import InferenceResponse, Request, Sender

TEXT_ONLY = ReturnFlags()
TEXT = " The cat sat on the mat, 今天天气如何？ and ended."


class Channel:
    """A responder, what it asked the engine to abort, and the end of each request."""

    def __init__(self, shards: int = 2, pace: Pace | None = None) -> None:
        self.aborted: list[int] = []
        self.closed: list[Outbox] = []
        self._ended = threading.Semaphore(0)
        self._pace = pace or Pace(1)
        self.responder = Responder(shards, self.aborted.extend, self._on_closed)

    def _on_closed(self, outbox: Outbox) -> None:
        self.closed.append(outbox)
        self._ended.release()

    def open(
        self,
        request: Request,
        *,
        stream: bool = True,
        n: int = 1,
        prompt: str = "",
        returns: ReturnFlags = TEXT_ONLY,
        read_time: float | None = None,
        before_open: Callable[[Outbox], None] = lambda outbox: None,
        **sampling: object,
    ) -> Outbox:
        params = SamplingParams.parse(sampling)
        outbox = self.responder.outbox(request)
        generate = GenerateRequest("x", None, stream, not prompt, returns, True, None, params)
        outbox.prepare(
            generate,
            [TextStream(smollm2(), params) for _ in range(n)],
            3,
            prompt,
            self._pace.stream(read_time) if stream else None,
        )
        before_open(outbox)
        outbox.open(list(range(1, n + 1)))
        return outbox

    def wait(self, requests: int = 1) -> None:
        for _ in range(requests):
            assert self._ended.acquire(timeout=10)
        assert self.responder.close(10)


def outputs(
    text: str = TEXT, *, uid: int = 1, sizes: Sequence[int] = (), reason: str = "length"
) -> list[RequestOutput]:
    """A text's tokens in outputs of the given sizes, then one by one; the last one ends."""
    ids = smollm2().encode(text, add_special_tokens=False)
    pieces = []
    for size in [*sizes, *[1] * len(ids)]:
        pieces.append(ids[:size])
        ids = ids[size:]
        if not ids:
            break
    ends = [None] * (len(pieces) - 1) + [reason]
    return [RequestOutput(uid, piece, end) for piece, end in zip(pieces, ends, strict=True)]


def joined(request: Request) -> str:
    return "".join(text for (text,) in request.sender.texts())


@untimed
@given(st.lists(st.integers(1, 5), max_size=20), st.integers(0, 30))
def test_a_stream_joined_is_the_text_however_outputs_meet_the_shard(
    sizes: list[int], early: int
) -> None:
    request, channel = Request(), Channel()
    parts = outputs(sizes=sizes)
    outbox = channel.open(
        request, before_open=lambda box: [box.put(output) for output in parts[:early]] and None
    )
    for output in parts[early:]:
        outbox.put(output)
    channel.wait()
    assert joined(request) == TEXT
    assert request.sender.closed
    assert channel.aborted == []


def test_many_shards_send_for_one_request_in_turn() -> None:
    class Slow(Sender):
        overlaps = 0

        def __init__(self) -> None:
            super().__init__()
            self._sending = threading.Lock()

        def send(self, *arguments: object, **named: object) -> None:
            if not self._sending.acquire(blocking=False):
                Slow.overlaps += 1
                return
            time.sleep(0.0005)
            super().send(*arguments, **named)
            self._sending.release()

    channel = Channel(shards=8)
    requests = [Request() for _ in range(6)]
    for request in requests:
        request.sender = Slow()
    opened = [channel.open(request) for request in requests]
    for output in outputs(TEXT * 3):
        for outbox in opened:
            outbox.put(output)
        time.sleep(0.0002)
    channel.wait(len(requests))
    assert Slow.overlaps == 0
    assert [joined(request) for request in requests] == [TEXT * 3] * len(requests)


def test_outputs_that_wait_together_are_one_response() -> None:
    request, channel = Request(), Channel()
    parts = outputs()
    channel.open(request, before_open=lambda box: [box.put(o) for o in parts] and None)
    channel.wait()
    assert request.sender.texts() == [[TEXT]]


def test_without_a_stream_there_is_one_response_at_the_end() -> None:
    request, channel = Request(), Channel()
    outbox = channel.open(request, stream=False, prompt="Once")
    for output in outputs():
        outbox.put(output)
    channel.wait()
    assert request.sender.texts() == [["Once" + TEXT]]


def test_a_stop_string_cuts_the_text_and_ends_the_sequence_in_the_engine() -> None:
    for stream in (True, False):
        request, channel = Request(), Channel()
        outbox = channel.open(request, stream=stream, stop=["on the mat"])
        for output in outputs()[:12]:
            outbox.put(output)
        channel.wait()
        assert joined(request) == " The cat sat "
        assert channel.aborted == [1]


def test_choices_have_an_element_each_and_end_apart() -> None:
    request, channel = Request(), Channel()
    outbox = channel.open(request, n=2, returns=ReturnFlags(True, False, False, True, True))
    for output in [*outputs(" one two", uid=2), *outputs(" three", uid=1, reason="stop")]:
        outbox.put(output)
    channel.wait()
    texts = request.sender.texts()
    assert ["".join(column) for column in zip(*texts, strict=True)] == [" three", " one two"]
    assert all("" in pair for pair in texts)  # a response has news of one choice
    sent = request.sender.sent
    reasons = {tuple(response.outputs["finish_reason"].tolist()) for response in sent}
    assert reasons == {(b"None", b"None"), (b"None", b"length"), (b"stop", b"None")} - (
        set() if len(sent) > 2 else {(b"None", b"None")}
    )
    counts = [response.outputs["num_output_tokens"].tolist() for response in sent]
    assert [sum(column) for column in zip(*counts, strict=True)] == [1, 2]
    assert {response.outputs["num_input_tokens"].item() for response in sent} == {3}


@pytest.mark.parametrize("stream", [True, False])
def test_the_first_response_alone_says_how_much_of_the_prompt_was_cached(stream: bool) -> None:
    request, channel = Request(), Channel()
    outbox = channel.open(request, stream=stream, n=2, returns=ReturnFlags(num_cached_tokens=True))
    for uid, cached in ((1, 16), (2, 32)):
        for output in outputs(" one two", uid=uid):
            start = RequestStart(queue=0.0, prefill=0.0, cached_tokens=cached)
            outbox.put(msgspec.structs.replace(output, start=start))
    channel.wait()
    first, *others = request.sender.sent
    assert first.outputs["num_cached_tokens"].tolist() == [16]
    assert all("num_cached_tokens" not in response.outputs for response in others)


def test_choices_without_a_stream_come_in_their_order() -> None:
    request, channel = Request(), Channel()
    outbox = channel.open(request, stream=False, n=3, prompt="> ")
    for uid, text in ((3, " c"), (1, " a"), (2, " b")):
        for output in outputs(text, uid=uid):
            outbox.put(output)
    channel.wait()
    assert request.sender.texts() == [[">  a", ">  b", ">  c"]]


def test_logprobs_have_an_entry_a_token_in_the_response_that_counts_it() -> None:
    request, channel = Request(), Channel()
    returns = ReturnFlags(cumulative_logprob=True, logprobs=True, num_output_tokens=True)
    outbox = channel.open(request, returns=returns, logprobs=0)
    for output in outputs(" one two three"):
        found = [TokenLogprobs(-0.5, 1, [], [])] * len(output.token_ids)
        outbox.put(RequestOutput(1, output.token_ids, output.finish_reason, logprobs=found))
    channel.wait()
    for sent in request.sender.sent:
        (entries,) = sent.outputs["logprobs"]
        assert [len(json.loads(entries))] == sent.outputs["num_output_tokens"].tolist()
    assert request.sender.sent[-1].outputs["cumulative_logprob"].tolist() == [-1.5]


def test_an_error_comes_after_the_text_before_it_and_frees_every_choice() -> None:
    request, channel = Request(), Channel()
    outbox = channel.open(request, n=2)
    first, second = outputs(" one two")
    outbox.put(first)
    outbox.fail(Cancelled("the client cancelled the request"))
    outbox.put(second)
    channel.wait()
    assert request.sender.texts() == [[" one", ""]]
    assert request.sender.error == ("CANCELLED", "the client cancelled the request")
    assert sorted(channel.aborted) == [1, 2]


def test_an_error_is_sent_though_an_output_follows_it_while_the_shard_is_busy() -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Held(TextStream):
        def push(self, outputs: object) -> TextDelta:
            entered.set()
            assert go_on.wait(10)
            return super().push(outputs)

    request, channel = Request(), Channel(shards=1)
    params = SamplingParams()
    outbox = channel.responder.outbox(request)
    generate = GenerateRequest("x", None, False, True, TEXT_ONLY, True, None, params)
    outbox.prepare(generate, [Held(smollm2(), params)], 3, "")
    first, second, *_ = outputs()
    outbox.put(first)
    outbox.open([1])
    assert entered.wait(10)
    outbox.fail(Cancelled("the client cancelled the request"))
    outbox.put(second)  # the engine had sent it before it heard of the end
    go_on.set()
    channel.wait()
    assert request.sender.error == ("CANCELLED", "the client cancelled the request")


@pytest.mark.parametrize("shards", [1, 2])
def test_closing_waits_for_what_came_while_a_shard_was_busy(shards: int) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Held(Sender):
        def send(self, response: InferenceResponse, flags: int = 0) -> None:
            entered.set()
            assert go_on.wait(10)
            super().send(response, flags)

    request, channel = Request(), Channel(shards=shards)
    request.sender = Held()
    outbox = channel.open(request)
    outbox.put(outputs()[0])
    assert entered.wait(10)
    outbox.fail(Unavailable("the model is being unloaded"))
    assert not channel.responder.close(0)
    go_on.set()
    assert channel.responder.close(10)
    assert request.sender.error == ("UNAVAILABLE", "the model is being unloaded")


def test_without_a_stream_an_error_is_the_only_response() -> None:
    request, channel = Request(), Channel()
    outbox = channel.open(request, stream=False)
    outbox.put(outputs()[0])
    outbox.put(RequestOutput(1, [], error=("UNAVAILABLE", "the engine ended")))
    channel.wait()
    assert request.sender.texts() == []
    assert request.sender.error == ("UNAVAILABLE", "the engine ended")


def test_an_internal_error_has_an_id_that_the_log_has_too(caplog) -> None:
    request, channel = Request(request_id="a\nb"), Channel()
    outbox = channel.open(request)
    outbox.put(RequestOutput(1, [], error=("INTERNAL", "a step failed")))
    channel.wait()
    status, message = request.sender.error
    assert status == "INTERNAL"
    error_id = re.fullmatch(r"a step failed \(error (\w+), see the server's log\)", message).group(
        1
    )
    (record,) = caplog.records
    assert record.getMessage() == f"error {error_id}, request 'a\\\\nb': a step failed"


def test_a_request_s_id_is_shown_by_its_beginning_and_forges_no_line() -> None:
    assert shown_id("r-1") == "r-1"
    assert shown_id("x" * 128) == "x" * 128
    assert shown_id("x" * 129) == "x" * 128 + "..."
    assert shown_id("a\nE1130 forged\u2028\x1b[2J") == r"a\nE1130 forged\u2028\x1b[2J"


class BrokenSender(Sender):
    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        if response.error is None:
            raise RuntimeError("shared memory is full")
        super().send(response, flags)


def test_a_send_that_fails_ends_that_request_alone() -> None:
    broken, sound, channel = Request(), Request(), Channel(shards=1)
    broken.sender = BrokenSender()
    channel.open(broken).put(outputs()[0])
    outbox = channel.open(sound)
    for output in outputs():
        outbox.put(output)
    channel.wait(2)
    assert broken.sender.error[0] == "INTERNAL"
    assert "shared memory" not in broken.sender.error[1]
    assert joined(sound) == TEXT


def test_every_end_is_counted_once_by_its_outcome() -> None:
    channel = Channel()
    for index in range(6):
        outbox = channel.open(Request())
        if index % 3 == 0:
            outbox.fail(Cancelled("gone"))
        for output in outputs():
            outbox.put(output)
    channel.wait(6)
    stats = channel.responder.stats()
    assert (stats.stop, stats.length, stats.cancelled) == (0, 4, 2)
    assert (stats.invalid, stats.unavailable, stats.failed) == (0, 0, 0)
    assert stats.output_tokens == 4 * len(smollm2().encode(TEXT, add_special_tokens=False))
    assert stats.prompt_tokens == 4 * 3
    assert sum(stats.e2e.counts) == 6
    assert sum(stats.ttft.counts) == 4
    assert sum(stats.prompt_length.counts) == sum(stats.output_length.counts) == 4
    assert stats.output_length.sum == stats.output_tokens
    assert sum(stats.queue.counts) == 0, "no output said when its request began"


def test_a_request_counts_as_cut_where_one_of_its_choices_is() -> None:
    channel = Channel()
    for reasons in (("stop", "length"), ("length", "stop"), ("stop", "stop")):
        outbox = channel.open(Request(), n=2)
        for uid, reason in enumerate(reasons, start=1):
            for output in outputs(uid=uid, reason=reason):
                outbox.put(output)
    channel.wait(3)
    stats = channel.responder.stats()
    assert (stats.stop, stats.length) == (1, 2)


def test_an_outbox_is_queued_once_for_what_came_and_not_again_without_more() -> None:
    queued: list[Outbox] = []
    outbox = Outbox(Request(), "", 0.0, queued.append)
    params = SamplingParams()
    generate = GenerateRequest("x", None, True, True, TEXT_ONLY, True, None, params)
    outbox.prepare(generate, [TextStream(smollm2(), params)], 3, "")
    first, second, third, *_ = outputs()
    outbox.put(first)
    assert queued == []
    outbox.open([1])
    outbox.put(second)
    assert queued == [outbox]
    assert outbox.take() == [first, second]
    outbox.served()
    assert queued == [outbox]
    outbox.put(third)
    assert queued == [outbox] * 2
    assert outbox.take() == [third]
    outbox.put(first)  # while a shard has it
    assert queued == [outbox] * 2
    outbox.served()
    assert queued == [outbox] * 3


def test_the_phases_of_a_request_are_counted_from_what_its_first_output_says() -> None:
    channel = Channel()
    first, *rest = outputs()
    outbox = channel.open(Request())
    outbox.put(msgspec.structs.replace(first, start=RequestStart(0.5, 0.25, 0)))
    for output in rest:
        outbox.put(output)
    channel.wait()
    stats = channel.responder.stats()
    assert (stats.queue.sum, stats.prefill.sum) == (0.5, 0.25)
    assert stats.decode.sum == outbox.last_token_at - outbox.first_token_at
    assert sum(stats.decode.counts) == 1


class Watched(Sender):
    """Says when a response was sent."""

    def __init__(self) -> None:
        super().__init__()
        self._sent = threading.Semaphore(0)

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        super().send(response, flags)
        self._sent.release()

    def wait(self) -> None:
        assert self._sent.acquire(timeout=10)


def sent_one_by_one(
    channel: Channel, parts: Sequence[RequestOutput], due: Sequence[int], **options: object
) -> Request:
    """Puts the parts, and waits for a response after each of those that are `due`, by place."""
    request = Request()
    request.sender = Watched()
    outbox = channel.open(request, **options)
    for place, part in enumerate(parts):
        outbox.put(part)
        if place in due:
            request.sender.wait()
    channel.wait()
    return request


def test_an_interval_holds_tokens_but_the_first_and_flushes_the_last() -> None:
    returns = ReturnFlags(logprobs=True, cumulative_logprob=True, num_output_tokens=True)
    ids = smollm2().encode(" one two three four five six", add_special_tokens=False)
    assert len(ids) == 6
    found = [TokenLogprobs(-0.5, 1, [], [])]
    parts = [RequestOutput(1, [token_id], logprobs=found) for token_id in ids]
    parts[-1] = msgspec.structs.replace(parts[-1], finish_reason="length")
    channel = Channel(pace=Pace(3))
    request = sent_one_by_one(channel, parts, due=(0, 3), returns=returns, logprobs=0)
    assert request.sender.texts() == [[" one"], [" two three four"], [" five six"]]
    sent = request.sender.sent
    assert [response.outputs["num_output_tokens"].item() for response in sent] == [1, 3, 2]
    assert [len(json.loads(response.outputs["logprobs"].item())) for response in sent] == [1, 3, 2]
    sums = [response.outputs["cumulative_logprob"].item() for response in sent]
    assert sums == [-0.5, -2.0, -3.0]


def test_a_part_of_an_interval_ends_at_a_whole_character() -> None:
    text = "今天天气"
    parts = outputs(text)
    assert len(parts) > len(text), "some character takes several tokens"
    request, channel = Request(), Channel(pace=Pace(2))
    outbox = channel.open(request)
    for part in parts:
        outbox.put(part)
    channel.wait()
    assert joined(request) == text
    assert "\ufffd" not in "".join(column for (column,) in request.sender.texts())


def test_choices_have_intervals_of_their_own() -> None:
    one, two = outputs(" a b c d", uid=1), outputs(" e f g h", uid=2)
    parts = [part for pair in zip(one, two, strict=True) for part in pair]
    channel = Channel(pace=Pace(2))
    request = sent_one_by_one(channel, parts, due=(0, 1, 4, 5, 6), n=2)
    assert request.sender.texts() == [
        [" a", ""], ["", " e"], [" b c", ""], ["", " f g"], [" d", ""], ["", " h"],
    ]  # fmt: skip


def test_a_stop_string_across_the_parts_of_an_interval_cuts_the_text() -> None:
    channel = Channel(pace=Pace(3))
    parts = outputs(" one two three four five six seven eight")[:7]
    request = sent_one_by_one(channel, parts, due=(0,), stop=["four five"])
    assert joined(request) == " one two three "
    assert channel.aborted == [1]


def test_tokens_that_wait_are_sent_before_an_error() -> None:
    request, channel = Request(), Channel(pace=Pace(10))
    request.sender = Watched()
    outbox = channel.open(request)
    first, second, third, *_ = outputs(" one two three four")
    outbox.put(first)
    request.sender.wait()
    outbox.put(second)
    outbox.put(third)
    outbox.fail(Cancelled("the client cancelled the request"))
    channel.wait()
    assert request.sender.texts() == [[" one"], [" two three"]]
    assert request.sender.error == ("CANCELLED", "the client cancelled the request")


class Deaf(Sender):
    """Fails when the last response is sent."""

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        if flags:
            raise RuntimeError("the server has gone")
        super().send(response, flags)


FINISHED = RequestOutput(1, [], "length")
LOST = RequestOutput(1, [], error=("UNAVAILABLE", "the engine process ended unexpectedly"))


@pytest.mark.parametrize("num_tokens", [0, 1, 3])
@pytest.mark.parametrize(
    ("end", "sender"),
    [
        (lambda outbox: outbox.put(FINISHED), Sender),
        (lambda outbox: outbox.put(LOST), Sender),
        (lambda outbox: outbox.fail(Cancelled("the client cancelled the request")), Sender),
        (lambda outbox: outbox.put(FINISHED), Deaf),
        (lambda outbox: outbox.fail(Unavailable("the model is being unloaded")), Deaf),
    ],
)
def test_however_a_stream_ends_its_reader_has_a_choice_less(
    end: Callable[[Outbox], None], sender: type[Sender], num_tokens: int
) -> None:
    pace, request = Pace(1), Request()
    request.sender = sender()
    channel = Channel(pace=pace)
    outbox = channel.open(request, read_time=1e-3)
    for part in outputs(" one two three")[:num_tokens]:
        outbox.put(part)
    assert pace.num_read == (num_tokens > 0)
    end(outbox)
    channel.wait()
    assert pace.num_read == 0


def test_a_stop_string_ends_a_choice_that_a_reader_reads() -> None:
    pace, request = Pace(1), Request()
    channel = Channel(pace=pace)
    outbox = channel.open(request, read_time=1e-3, stop=[" one"])
    outbox.put(outputs(" one two")[0])
    channel.wait()
    assert (channel.aborted, pace.num_read) == ([1], 0)
    outbox.put(outputs(" one two")[1])  # sent before the engine heard of it
    assert pace.num_read == 0
