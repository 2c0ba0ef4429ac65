from __future__ import annotations

import threading

import pytest
from inferx.engine import supervisor
from inferx.engine.sampling import SamplingParams
from inferx.errors import InvalidArgument, Unavailable
from running_engine import PATIENCE, Outputs, engine_process, make_client, wait_until

FOREVER = SamplingParams(max_tokens=8000)


@pytest.fixture
def client():
    client = make_client(max_num_seqs=4, max_queue_size=4)
    client.start()
    yield client
    client.close(5)


def tokens(count):
    """What the synthetic engine says: every request reads the same ids."""
    return [3 + (index * 61) % 509 for index in range(count)]


def test_outputs_come_back_in_order_and_the_last_says_why(client):
    outputs = Outputs()
    (uid,) = client.submit([1, 2, 3], [SamplingParams(max_tokens=50)], outputs)
    outputs.wait_for_last([uid])
    assert outputs.tokens(uid) == tokens(50)
    assert outputs.of[uid][-1].finish_reason == "length"
    assert outputs.num_last(uid) == 1
    assert client.num_in_flight == 0


def test_each_choice_has_its_uid_and_its_parameters(client):
    outputs = Outputs()
    choices = [SamplingParams(n=3, max_tokens=count) for count in (1, 5, 9)]
    uids = client.submit([1], choices, outputs)
    assert len(set(uids)) == 3
    outputs.wait_for_last(uids)
    assert [outputs.tokens(uid) for uid in uids] == [tokens(1), tokens(5), tokens(9)]


def test_a_stop_token_ends_a_request_and_is_named(client):
    outputs = Outputs()
    third = tokens(3)[-1]
    (uid,) = client.submit([1], [SamplingParams(max_tokens=9, stop_token_ids=(third,))], outputs)
    outputs.wait_for_last([uid])
    assert outputs.tokens(uid) == tokens(3)
    assert (outputs.of[uid][-1].finish_reason, outputs.of[uid][-1].stop_token_id) == ("stop", third)


def test_the_queue_is_bounded_and_the_refusal_has_both_numbers(client):
    outputs = Outputs()
    for _ in range(3):
        client.submit([1], [FOREVER, FOREVER], outputs)
    with pytest.raises(Unavailable, match=r"queue is full: 6 .* 3 more .* 8"):
        client.submit([1], [FOREVER] * 3, outputs)
    client.submit([1], [FOREVER, FOREVER], outputs)
    with pytest.raises(Unavailable, match="queue is full: 8"):
        client.submit([1], [FOREVER], outputs)
    assert client.num_in_flight == 8


def test_more_choices_than_there_is_ever_room_for_are_no_reason_to_try_again(client):
    outputs = Outputs()
    client.submit([1], [FOREVER] * 8, outputs)
    for in_flight in (8, 0):
        with pytest.raises(InvalidArgument, match=r"^n is 9: .* at most 8 sequences at once"):
            client.submit([1], [FOREVER] * 9, outputs)
        assert client.num_in_flight == in_flight
        client.abort(list(range(1, 9)))


def test_running_and_queued_requests_are_aborted_and_others_go_on(client):
    outputs = Outputs()
    running = client.submit([1], [FOREVER] * 3, outputs)
    outputs.wait_for_first(running)
    (other,) = client.submit([1], [SamplingParams(max_tokens=400)], outputs)
    outputs.wait_for_first([other])
    queued = client.submit([1], [FOREVER] * 4, outputs)
    client.abort(queued)
    client.abort(running)
    assert client.num_in_flight <= 1
    outputs.wait_for_last([other])
    assert outputs.tokens(other) == tokens(400)
    assert not any(outputs.of[uid] for uid in queued)
    assert not any(outputs.num_last(uid) for uid in running)
    wait_until(lambda: client.stats.running == 0 and client.stats.waiting == 0)
    assert client.stats.used_blocks == 0


def test_aborting_what_has_ended_or_never_was_changes_nothing(client):
    outputs = Outputs()
    (uid,) = client.submit([1], [SamplingParams(max_tokens=1)], outputs)
    outputs.wait_for_last([uid])
    client.abort([uid, 999])
    (uid,) = client.submit([1], [SamplingParams(max_tokens=1)], outputs)
    outputs.wait_for_last([uid])


def test_what_the_model_cannot_take_is_refused_before_it_is_sent(client):
    with pytest.raises(InvalidArgument, match="8192"):
        client.submit([1], [SamplingParams(max_tokens=9000)], Outputs())
    assert client.num_in_flight == 0


def test_what_the_scheduler_refuses_is_that_requests_last_output():
    client = make_client(num_gpu_blocks_override=2)
    client.start()
    outputs = Outputs()
    (refused,) = client.submit([1] * 40, [SamplingParams(max_tokens=8)], outputs)
    (served,) = client.submit([1], [SamplingParams(max_tokens=8)], outputs)
    outputs.wait_for_last([refused, served])
    assert outputs.error(refused)[0] == "INVALID_ARG"
    assert outputs.tokens(served) == tokens(8)
    client.close(5)


def test_a_sink_that_raises_harms_no_other_request(client):
    def broken(output):
        raise ValueError("broken on purpose")

    outputs = Outputs()
    client.submit([1], [SamplingParams(max_tokens=3)], broken)
    (uid,) = client.submit([1], [SamplingParams(max_tokens=30)], outputs)
    outputs.wait_for_last([uid])
    wait_until(lambda: client.num_in_flight == 0)


def test_a_request_that_cannot_be_sent_leaves_no_trace(client):
    unsendable = SamplingParams(stop=("\ud800",))
    for _ in range(9):  # more than the queue holds
        with pytest.raises(UnicodeEncodeError):
            client.submit([1], [unsendable], Outputs())
    assert client.num_in_flight == 0


def test_draining_refuses_new_requests_and_finishes_the_others(client):
    outputs = Outputs()
    (uid,) = client.submit([1], [SamplingParams(max_tokens=100)], outputs)
    client.drain()
    with pytest.raises(Unavailable, match="unloaded"):
        client.submit([1], [FOREVER], outputs)
    outputs.wait_for_last([uid])
    assert outputs.tokens(uid) == tokens(100)


def test_closing_ends_every_request_and_the_process(client):
    outputs = Outputs()
    process = engine_process()
    uids = client.submit([1], [FOREVER] * 8, outputs)
    client.close(5)
    assert [outputs.error(uid)[0] for uid in uids] == ["UNAVAILABLE"] * 8
    assert [outputs.num_last(uid) for uid in uids] == [1] * 8
    assert not process.is_running()
    assert not client.is_up
    with pytest.raises(Unavailable):
        client.submit([1], [FOREVER], outputs)
    client.abort(uids)
    client.close(5)


def test_thousands_of_requests_from_many_threads_each_end_exactly_once():
    client = make_client(max_num_seqs=64, max_queue_size=10_000, synthetic_step_time=0)
    client.start()
    outputs = Outputs()
    uids, aborted = [], []

    def submit_many(lane):
        for index in range(250):
            params = [SamplingParams(max_tokens=1 + (index + lane) % 7)] * (1 + index % 3)
            mine = client.submit([1, 2], params, outputs)
            if index % 5 == 0:
                client.abort(mine)
                aborted.extend(mine)
            else:
                uids.extend(mine)

    threads = [threading.Thread(target=submit_many, args=(lane,)) for lane in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outputs.wait_for_last(uids)
    wait_until(lambda: client.num_in_flight == 0)
    client.close(5)
    assert len(set(uids)) + len(set(aborted)) == 8 * 499
    assert {outputs.num_last(uid) for uid in uids} == {1}
    assert all(outputs.num_last(uid) <= 1 for uid in aborted)


def test_a_sink_that_never_returns_does_not_keep_close_or_the_engine(monkeypatch):
    monkeypatch.setattr(supervisor, "JOIN_MARGIN", 0.2)
    client = make_client()
    client.start()
    stuck, release = threading.Event(), threading.Event()

    def wait(output):
        stuck.set()
        release.wait()

    client.submit([1], [SamplingParams(max_tokens=1)], wait)
    assert stuck.wait(PATIENCE)
    process = engine_process()
    client.close(0.1)
    release.set()
    wait_until(lambda: not process.is_running())
