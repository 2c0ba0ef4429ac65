"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Releases text once it can no longer become part of a stop string.

    The stop string that is complete first ends the text; of several that end at the same
    character, the longest. So the outcome does not depend on how the text was cut into pieces.
    """

    __slots__ = ("_by_first", "_by_last", "_held", "_include", "_longest")

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        """`stops` are not empty. With `include`, the stop string itself is released too."""
        self._include = include
        self._longest = max(map(len, stops))
        self._by_first: dict[str, list[str]] = {}
        self._by_last: dict[str, list[str]] = {}
        for stop in sorted(stops, key=len, reverse=True):
            self._by_first.setdefault(stop[0], []).append(stop)
            self._by_last.setdefault(stop[-1], []).append(stop)
        self._held = ""

    def push(self, piece: str, *, may_stop: bool = True) -> tuple[str, bool]:
        """The text released, and whether it ended. A stop string that is complete with a piece
        that may not stop is ordinary text."""
        text = self._held + piece
        if may_stop and (found := self._find(text, len(self._held))):
            start, end = found
            self._held = ""
            return text[: end if self._include else start], True
        keep = self._first_possible(text)
        self._held = text[keep:]
        return text[:keep], False

    def flush(self) -> str:
        """What is held; the text has ended otherwise."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str, scanned: int) -> tuple[int, int] | None:
        """Start and end of the stop string that ends first beyond `scanned`."""
        for end in range(scanned + 1, len(text) + 1):
            for stop in self._by_last.get(text[end - 1], ()):
                if text.endswith(stop, 0, end):
                    return end - len(stop), end
        return None

    def _first_possible(self, text: str) -> int:
        """Where the longest end of the text that is the beginning of a stop string begins.

        It costs at most one comparison with each stop string for each character released: a
        beginning that remains possible is found at the first try.
        """
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            for stop in self._by_first.get(text[start], ()):
                if len(stop) > len(text) - start and stop.startswith(text[start:]):
                    return start
        return len(text)
