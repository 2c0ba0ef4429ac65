"""Clients that go away, deadlines and a full queue: every request ends, every page comes back.

The synthetic models emit the same paragraph for every prompt, at a fixed time a token.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from inferx_client import Completion, Delta, InferenceError
from inferx_client.wire import deltas
from served import Served
from tritonclient.utils import InferenceServerException

LONG = 4000  # tokens; minutes of a slow model


def test_streams_of_several_choices_free_all_of_them_when_the_client_goes(
    smollm2: Served,
) -> None:
    before = smollm2.counted("cancelled")
    stream = smollm2.stream("Once upon a time", n=2, max_tokens=900, ignore_eos=True)
    next(stream)
    smollm2.wait_for_metric("inferx:num_requests_running", lambda running: running == 2)
    smollm2.wait_for_metric("inferx:kv_pages_used", lambda pages: pages > 0)
    stream.close()
    smollm2.wait_until_idle()
    smollm2.wait_until_counted("cancelled", before + 1)


def test_a_hundred_clients_gone_after_one_delta_leave_nothing_behind(synthetic: Served) -> None:
    text = synthetic.generate("Once", max_tokens=40).text
    before = synthetic.counted("cancelled")

    def leave_early(number: int) -> None:
        stream = synthetic.stream(f"Client {number} says", max_tokens=LONG)
        next(stream)
        stream.close()

    with ThreadPoolExecutor(10) as clients:
        list(clients.map(leave_early, range(100)))
    synthetic.wait_until_idle()
    synthetic.wait_until_counted("cancelled", before + 100)
    assert synthetic.generate("Once", max_tokens=40).text == text


def test_closing_the_connection_frees_everything_too(synthetic: Served) -> None:
    before = synthetic.counted("cancelled")
    with Served(synthetic.server, "synthetic") as other:
        streams = [other.stream("Once", max_tokens=LONG) for _ in range(4)]
        for stream in streams:
            next(stream)
    synthetic.wait_until_idle()
    synthetic.wait_until_counted("cancelled", before + 4)


def test_a_request_is_cancelled_while_it_is_queued(narrow: Served) -> None:
    before = narrow.counted("cancelled")
    running = narrow.stream("Once", max_tokens=LONG)
    next(running)
    queued = Call(narrow, "Once", max_tokens=8)
    narrow.wait_for_metric("inferx:num_requests_waiting", lambda waiting: waiting == 1)
    queued.cancel()
    narrow.wait_for_metric("inferx:num_requests_waiting", lambda waiting: waiting == 0)
    narrow.wait_until_counted("cancelled", before + 1)
    assert next(running).text, "the running request goes on"
    running.close()
    narrow.wait_until_idle()


def test_a_request_is_cancelled_while_its_prompt_is_processed(narrow: Served) -> None:
    # 8,000 tokens take 10 s
    call = Call(narrow, [5] * 8000, max_tokens=8)
    narrow.wait_for_metric("inferx:kv_pages_used", lambda pages: pages > 0)
    assert not call.responses
    call.cancel()
    assert narrow.generate("Once", max_tokens=2, timeout=4.0).num_output_tokens == [2]
    narrow.wait_until_idle()
    assert not call.responses


def test_a_request_is_cancelled_while_it_decodes(narrow: Served) -> None:
    stream = narrow.stream("Once", max_tokens=LONG)
    for _ in range(3):
        next(stream)
    stream.close()
    assert narrow.generate("Once", max_tokens=2, timeout=4.0).num_output_tokens == [2]
    narrow.wait_until_idle()


def test_a_request_cancelled_before_its_answer_counts_as_cancelled_not_as_a_success(
    narrow: Served, whole: Served
) -> None:
    for model in (narrow, whole):
        cancelled, success = model.counted("cancelled"), model.counted("success")
        if model is whole:
            call: Any = whole.infer("Once", max_tokens=LONG)
        else:
            call = Call(narrow, "Once", max_tokens=LONG, stream=False)
        model.wait_for_metric("inferx:num_requests_running", lambda running: running == 1)
        call.cancel()
        model.wait_until_counted("cancelled", cancelled + 1)
        assert model.counted("success") == success


def test_a_deadline_ends_a_stream_with_cancelled_after_the_text_so_far(narrow: Served) -> None:
    expected = narrow.generate("Once", max_tokens=40).text
    seen = Completion()
    with pytest.raises(InferenceError, match=r"the deadline of 0\.5 s passed"):
        collect(seen, narrow.stream("Once", max_tokens=LONG, timeout=0.5))
    assert seen.text
    assert expected.startswith(seen.text), "nothing is missing before the error"
    assert seen.finish_reasons == [None]
    narrow.wait_until_idle()


def test_a_deadline_ends_a_plain_request_with_cancelled_and_no_text(
    narrow: Served, whole: Served
) -> None:
    cancelled = narrow.counted("cancelled")
    refusal = narrow.refusal("Once", max_tokens=LONG, timeout=0.3)
    assert refusal == "CANCELLED: the deadline of 0.3 s passed"
    narrow.wait_until_counted("cancelled", cancelled + 1)
    with pytest.raises(InferenceServerException, match="the deadline of") as error:
        whole.infer("Once", max_tokens=LONG, timeout=300_000).result()
    assert error.value.status() == "StatusCode.CANCELLED"
    for model in (narrow, whole):
        model.wait_until_idle()


def test_a_deadline_is_honoured_while_the_request_is_queued(narrow: Served) -> None:
    running = narrow.stream("Once", max_tokens=LONG)
    next(running)
    refusal = narrow.refusal("Once", max_tokens=8, timeout=0.3)
    assert refusal == "CANCELLED: the deadline of 0.3 s passed"
    assert next(running).text
    running.close()
    narrow.wait_until_idle()


def test_generate_takes_the_deadline_from_its_parameters(narrow: Served) -> None:
    status, answer = narrow.post(
        {"text_input": "Once", "parameters": {"max_tokens": LONG, "timeout": 300_000}}
    )
    assert status != 200
    assert "deadline" in answer["error"]
    narrow.wait_until_idle()


def test_a_full_queue_answers_unavailable_at_once(narrow: Served) -> None:
    running = narrow.stream("Once", max_tokens=LONG)
    next(running)
    queued = [Call(narrow, "Once", max_tokens=4) for _ in range(2)]
    narrow.wait_for_metric("inferx:num_requests_waiting", lambda waiting: waiting == 2)
    message = narrow.refusal("Once", max_tokens=4)
    assert "the queue is full" in message
    assert "3 (max_num_seqs + max_queue_size)" in message
    running.close()
    for call in queued:
        assert call.text() == narrow.generate("Once", max_tokens=4).text
    narrow.wait_until_idle()


def collect(seen: Completion, stream: Iterator[Delta]) -> None:
    for delta in stream:
        seen.add(delta)


def test_the_status_of_a_full_queue_is_unavailable(whole: Served) -> None:
    running = [whole.infer("Once", max_tokens=LONG) for _ in range(2)]
    whole.wait_for_metric("inferx:num_requests_running", lambda count: count == 2)
    with pytest.raises(InferenceServerException, match="the queue is full") as error:
        whole.infer("Once", max_tokens=4).result()
    assert error.value.status() == "StatusCode.UNAVAILABLE"
    for call in running:
        call.cancel()
    whole.wait_until_idle()


class Call:
    """A request over a gRPC stream of its own, sent at once and read by another thread."""

    def __init__(self, model: Served, prompt: Any, *, stream: bool = True, **options: Any) -> None:
        self._call = model.call(model.request(prompt, stream, options))
        self.responses: list[Any] = []
        self.error: grpc.RpcError | None = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def cancel(self) -> None:
        self._call.cancel()
        self._thread.join()

    def text(self) -> str:
        """Once it has ended without an error."""
        self._thread.join()
        assert self.error is None
        return "".join(delta.text for response in self.responses for delta in deltas(response))

    def _read(self) -> None:
        try:
            for response in self._call:
                self.responses.append(response)
        except grpc.RpcError as error:
            self.error = error
