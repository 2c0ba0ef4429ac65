"""PathPolicy: whether a step that may be sparse is, by what either path is predicted to cost."""

from __future__ import annotations

from inferx.paths.costs import Prediction

ENTER = 0.95  # of the dense step's time: the sparse path is taken from here on
LEAVE = 1.0  # and left from here on, so that noise between the two does not flap
TRIAL_EVERY = 256  # steps on one path, after which the other is tried once
TRIAL_LIMIT = 2.0  # times the better path's cost: what costs more is not tried


class PathPolicy:
    """Decides on the host, before the launch. Knows nothing of requests, rows or drift."""

    def __init__(self) -> None:
        self._sparse = False
        self._since_other = 0  # steps on the path that stands

    def choose(self, prediction: Prediction) -> bool:
        """True for the sparse path.

        A path that is never taken is never measured either. So one step in TRIAL_EVERY goes the
        other way, unless that is known to be slow; what stands does not change by it.
        """
        ratio = prediction.sparse / prediction.dense
        was, self._sparse = self._sparse, ratio < (LEAVE if self._sparse else ENTER)
        self._since_other = self._since_other + 1 if was is self._sparse else 0
        worse = ratio if not self._sparse else 1 / ratio
        if self._since_other < TRIAL_EVERY or worse > TRIAL_LIMIT:
            return self._sparse
        self._since_other = 0
        return not self._sparse
