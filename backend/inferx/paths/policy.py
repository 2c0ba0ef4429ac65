"""PathPolicy: whether a step that may be sparse is, by what either path is predicted to cost."""

from __future__ import annotations

from inferx.paths.costs import Prediction

ENTER = 0.95  # of the dense step's time: the sparse path is taken from here on
LEAVE = 1.0  # and left from here on, so that noise between the two does not flap
FIRST_TRIAL, LAST_TRIAL = 16, 512  # steps on one path between trials of the other
FAR_SLOWER = 2.0  # of the dense step's time: a sparse one that costs more is tried rarely
RARE_TRIAL = 16 * LAST_TRIAL  # steps: others' work may have held it up when it was measured


class PathPolicy:
    """Decides on the host, before the launch. Knows nothing of requests, rows or drift."""

    def __init__(self) -> None:
        self._sparse = False
        self._since_trial = 0  # steps on the path that stands
        self._trial_after = FIRST_TRIAL  # steps

    def choose(self, prediction: Prediction) -> bool:
        """True for the sparse path.

        A path that is never taken is never measured either. So now and then one step goes the
        other way: soon after a change, and twice as late each time, or rarely where that is far
        slower. What stands does not change by it.
        """
        ratio = prediction.sparse / prediction.dense
        stands = ratio < (LEAVE if self._sparse else ENTER)
        if stands is not self._sparse:
            self._sparse, self._since_trial, self._trial_after = stands, 0, FIRST_TRIAL
        self._since_trial += 1
        is_far_slower = not stands and ratio > FAR_SLOWER
        if self._since_trial < (RARE_TRIAL if is_far_slower else self._trial_after):
            return stands
        self._since_trial = 0
        self._trial_after = min(2 * self._trial_after, LAST_TRIAL)
        return not stands
