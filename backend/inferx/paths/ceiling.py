"""Ceiling: the sparsest row that may be taken, after what the probe has said."""

from __future__ import annotations

from inferx.paths.wishes import NONE

CALM = 512  # steps without an alarm, after which the next sparser row is tried
_LONGEST = 16 * CALM


class Ceiling:
    """An alarm takes it down by a row, or to none; calm periods bring it back, row by row.

    On the dense path nothing is probed, so coming back is a try: where an alarm follows within
    its period, the next period is twice as long, and where none does, CALM again.
    """

    def __init__(self, num_rows: int) -> None:
        self._top = num_rows - 1
        self.row = self._top  # NONE: every step is dense
        self._period = CALM  # steps
        self._changed_at = 0  # step
        self._is_try = False  # the last change was upwards
        self._newest = 0  # step that was launched
        self._heard_at, self._lowered_to = 0, self._top  # the newest step at the last alarm

    def drifted(self, row: int, step: int) -> bool:
        """`row` shows drift: it is not trusted, nor are sparser ones. False: it was not already."""
        return row <= self.row and self._lower(row - 1, step)

    def broken(self, step: int) -> bool:
        """Activations are not finite, or zeros alone: dense. False: it was already."""
        return self.row != NONE and self._lower(NONE, step)

    def at(self, step: int) -> int:
        """The row for a step; steps come in their order."""
        self._newest = step
        if self.row < self._top and step - self._changed_at >= self._period:
            self.row += 1
            self._changed_at, self._is_try = step, True
        return self.row

    def _lower(self, row: int, step: int) -> bool:
        """False: the last alarm has done so already. Probes of steps that were launched before it
        was heard may come late, when the way back is tried."""
        if step <= self._heard_at and row >= self._lowered_to:
            return False
        self._heard_at, self._lowered_to = self._newest, row
        if self._is_try:
            relapse = step - self._changed_at < self._period
            self._period = min(2 * self._period, _LONGEST) if relapse else CALM
        self.row, self._changed_at, self._is_try = row, step, False
        return True
