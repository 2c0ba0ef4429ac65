"""Which tokens of a stream wait, by the clock and by how many streams one reader reads."""

from __future__ import annotations

from inferx.engine.messages import RequestOutput
from inferx.triton.pace import Pace, StreamPace


def token(uid: int = 1, count: int = 1) -> RequestOutput:
    return RequestOutput(uid, [0] * count)


def dues(stream: StreamPace, moments: list[float]) -> list[float]:
    """Those of the moments, at each of which a token comes, at which tokens are due."""
    return [now for now in moments if stream.add(token(), now)]


def test_without_an_interval_or_a_reader_no_token_waits() -> None:
    assert Pace(1).stream(None) is None


def test_an_interval_counts_tokens_of_each_choice() -> None:
    stream = Pace(3).stream(None)
    assert stream is not None
    assert dues(stream, [0, 1, 2, 3, 4, 5, 6]) == [0, 3, 6]
    assert stream.add(token(2), 7.0), "another choice's first"
    assert stream.add(token(count=5), 7.0), "several tokens at once"


def test_what_is_held_comes_with_the_token_that_is_due_and_with_the_last() -> None:
    stream = Pace(3).stream(None)
    assert stream is not None
    a, b, c, d, e = (RequestOutput(1, [number]) for number in range(5))
    last = RequestOutput(1, [9], "stop")
    assert [stream.add(output, 0.0) for output in (a, b, c, d, e, last)] == [
        [a], [], [], [b, c, d], [], [e, last],
    ]  # fmt: skip
    other = RequestOutput(2, [0])
    assert stream.add(other, 0.0) == [other]
    stream.add(b, 0.0)
    stream.add(other, 0.0)
    assert stream.rest() == [b, other]
    assert stream.rest() == []
    stream.add(b, 0.0)
    failed = RequestOutput(2, [], error=("INTERNAL", "a step failed"))
    assert stream.add(failed, 0.0) == [b, failed]


def test_a_reader_that_keeps_up_gets_every_token() -> None:
    pace = Pace(1)
    streams = [pace.stream(0.001) for _ in range(8)]
    for stream in streams:
        assert stream is not None
        assert dues(stream, [0, 0.008, 0.016, 0.024]) == [0, 0.008, 0.016, 0.024]


def test_more_streams_than_a_reader_keeps_up_with_get_fewer_responses() -> None:
    pace = Pace(1)
    streams = [pace.stream(0.25) for _ in range(4)]
    assert [bool(stream.add(token(), 0.0)) for stream in streams if stream] == [True] * 4
    assert pace.num_read == 4
    for stream in streams:
        assert stream is not None
        assert dues(stream, [0.5, 1.0, 1.5, 2.25, 3.0]) == [1.0, 2.25]


def test_a_gap_is_a_streams_own_read_time_for_every_choice_that_goes_on() -> None:
    pace = Pace(1)
    first, second = pace.stream(0.25), pace.stream(0.5)
    assert first is not None
    assert second is not None
    for stream, uid in ((first, 1), (second, 2), (second, 3)):
        assert stream.add(token(uid), 0.0)
    assert pace.num_read == 3
    assert dues(first, [0.5, 0.75, 1.0]) == [0.75]
    assert [bool(second.add(token(2), now)) for now in (1.0, 1.25, 1.5)] == [False, False, True]
    second.end()
    assert pace.num_read == 1
    assert second.add(token(4), 1.0), "a token that the engine sent before it heard of the end"
    assert pace.num_read == 1
    first.end()
    first.end()
    assert pace.num_read == 0


def test_a_choice_of_one_token_counts_once_and_then_no_more() -> None:
    pace = Pace(1)
    stream = pace.stream(0.5)
    assert stream is not None
    only = RequestOutput(1, [0], "length")
    assert stream.add(only, 0.0) == [only]
    assert pace.num_read == 1
    stream.end()
    assert pace.num_read == 0


def test_streams_without_a_reader_are_neither_counted_nor_held() -> None:
    pace = Pace(2)
    read, other = pace.stream(0.5), pace.stream(None)
    assert read is not None
    assert other is not None
    assert read.add(token(), 0.0)
    assert dues(other, [0, 0.1, 0.2, 0.3, 0.4]) == [0, 0.2, 0.4]
    assert pace.num_read == 1
    assert dues(read, [0.1, 0.2, 0.6]) == [0.6]
