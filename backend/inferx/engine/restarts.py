"""How often, and after which pauses, a dead engine is started again."""

from __future__ import annotations

from collections import deque

WINDOW = 600.0  # seconds
_FIRST_DELAY = 0.1  # seconds; four times as long for each further restart in the window
_LONGEST_DELAY = 10.0


class RestartBudget:
    """`limit` restarts within WINDOW."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._restarts: deque[float] = deque()

    @property
    def used_up(self) -> str:
        return f"max_engine_restarts allows {self._limit} within {WINDOW / 60:g} minutes"

    def next_delay(self, now: float) -> float | None:
        """Seconds to wait before a restart, which is then counted; None: it is one too many."""
        while self._restarts and now - self._restarts[0] > WINDOW:
            self._restarts.popleft()
        if len(self._restarts) >= self._limit:
            return None
        self._restarts.append(now)
        return min(_LONGEST_DELAY, _FIRST_DELAY * 4.0 ** (len(self._restarts) - 1))
