from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from inferx.text.stop import StopScanner
from tokenizing import untimed


def scan(stops: list[str], pieces: list[str], *, include: bool = False) -> tuple[str, bool]:
    """The whole text released, and whether it ended at a stop string."""
    scanner, released = StopScanner(stops, include=include), ""
    for piece in pieces:
        text, ended = scanner.push(piece)
        released += text
        if ended:
            return released, True
    return released + scanner.flush(), False


def by_definition(stops: list[str], text: str, *, include: bool = False) -> tuple[str, bool]:
    """Reads on until the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include else end - len(longest)], True
    return text, False


_texts = st.text("ab.", max_size=30)
_stops = st.lists(st.text("ab.", min_size=1, max_size=6), min_size=1, max_size=4)


@untimed
@given(_stops, st.lists(st.text("ab.", max_size=4), max_size=15), st.booleans())
def test_the_text_ends_at_the_stop_string_that_is_complete_first(
    stops: list[str], pieces: list[str], include: bool
) -> None:
    text = "".join(pieces)
    assert scan(stops, pieces, include=include) == by_definition(stops, text, include=include)


@untimed
@given(_stops, st.lists(st.text("ab.", max_size=4), max_size=15))
def test_all_is_released_that_cannot_become_a_stop_string(
    stops: list[str], pieces: list[str]
) -> None:
    scanner, text, released = StopScanner(stops, include=False), "", ""
    for piece in pieces:
        delta, ended = scanner.push(piece)
        text, released = text + piece, released + delta
        if ended:
            return
        beginnings = [stop[:n] for stop in stops for n in range(1, len(stop))]
        longest = max((len(b) for b in beginnings if text.endswith(b)), default=0)
        assert released == text[: len(text) - longest]


def test_no_part_of_a_stop_string_leaks() -> None:
    scanner = StopScanner(["DEFGHIJ"], include=False)
    released = [scanner.push(letter) for letter in "ABCDEFGHIJ"]
    assert released == [(letter, False) for letter in "ABC"] + [("", False)] * 6 + [("", True)]


def test_what_was_held_comes_when_it_turns_out_to_be_text() -> None:
    scanner = StopScanner(["DEFGHIJ"], include=False)
    assert [scanner.push(piece)[0] for piece in ("ABCDEF", "G", "X")] == ["ABC", "", "DEFGX"]


def test_what_is_held_at_the_end_is_flushed() -> None:
    scanner = StopScanner(["</s>"], include=False)
    assert scanner.push("a<") == ("a", False)
    assert scanner.flush() == "<"
    assert scanner.flush() == ""


def test_a_stop_string_is_shown_where_it_is_wanted() -> None:
    assert scan(["STOP"], ["one ST", "OP two"], include=True) == ("one STOP", True)


def test_of_two_that_end_together_the_longer_one_is_cut() -> None:
    assert scan(["b", "aab"], ["xaab"]) == ("x", True)


def test_a_piece_that_may_not_stop_is_text_and_can_begin_a_later_stop_string() -> None:
    scanner = StopScanner(["ab", "bcd"], include=False)
    assert scanner.push("xab", may_stop=False) == ("xa", False)
    assert scanner.push("cd") == ("", True)


def test_a_stop_string_of_pieces_that_might_not_stop_is_text_where_it_is_held_too() -> None:
    scanner = StopScanner(["abcd", "b"], include=False)
    assert scanner.push("abc", may_stop=False) == ("", False)
    assert scanner.push("x") == ("abcx", False)
