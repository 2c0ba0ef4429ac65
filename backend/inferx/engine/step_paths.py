"""StepPaths: gives every plan its path before its launch, and learns from its result.

Only what is known by then counts: densities and costs of steps whose results have come, never a
result that is still in flight.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

import msgspec

from inferx.config import EngineConfig
from inferx.engine.messages import EngineRequest, SparseStats
from inferx.engine.plan import Plan, StepResult
from inferx.paths.ceiling import Ceiling
from inferx.paths.costs import Prediction, Predictor
from inferx.paths.drift import DriftMonitor, RuleName
from inferx.paths.info import SparsePath
from inferx.paths.policy import PathPolicy
from inferx.paths.probe import StepProbe
from inferx.paths.wishes import NONE, Wish, Wishes, together

logger = logging.getLogger(__name__)

_REPORT_EVERY = 4096  # choices, in the log
_NEWEST = 0.1  # the weight of the newest step in the mean union density


class _Launched(NamedTuple):
    """A step that may be sparse: what was known of it when it was launched."""

    prediction: Prediction
    sparse: bool
    is_choice: bool  # else its requests wish it so, whatever it costs


class StepPaths:
    """For the one thread that plans. Results come in the plans' order."""

    def __init__(self, path: SparsePath, wishes: Wishes, rule: RuleName) -> None:
        self._path, self._wishes = path, wishes
        self._policy, self._predictor = PathPolicy(), Predictor(path.costs)
        self._ceiling = Ceiling(len(path.rows))
        self._monitors = [DriftMonitor(row, path.sites_per_layer, rule) for row in path.rows]
        self._densities: dict[tuple[int, int], float] = {}  # by row and tokens
        self._of_slots: dict[int, Wish] = {}
        self._launched: deque[_Launched | None] = deque()  # None: no choice was left
        self._stats = SparseStats()

    @classmethod
    def of(cls, config: EngineConfig, path: SparsePath | None) -> StepPaths | None:
        """None where the engine has no sparse path."""
        if path is None:
            return None
        wishes = Wishes(
            path,
            config.sparsity,
            max_growth=config.sparsity_max_growth,
            batch_invariant=config.batch_invariant,
        )
        return cls(path, wishes, config.sparsity_drift_rule)

    @property
    def stats(self) -> SparseStats:
        return self._stats

    def resolved(self, request: EngineRequest) -> EngineRequest:
        """With the model's default where the request says nothing.

        A sparse step writes other keys and values than a dense one. So prefix pages are shared
        within one sparsity only, or an exact request would start from such pages.
        """
        sampling = request.sampling
        sparsity = self._wishes.default if sampling.sparsity is None else sampling.sparsity
        row = self._wishes.of(sparsity).row
        salt = _salt(None if row == NONE else sparsity, sampling.cache_salt)
        sampling = msgspec.structs.replace(sampling, sparsity=sparsity, cache_salt=salt)
        return msgspec.structs.replace(request, sampling=sampling)

    def choose(self, plan: Plan) -> Plan:
        """The plan with its path."""
        for new in plan.new_rows:
            assert new.sampling.sparsity is not None  # resolved
            self._of_slots[new.slot] = self._wishes.of(new.sampling.sparsity)
        ceiling = self._ceiling.at(plan.step)
        wish = self._wish(plan)
        row = min(wish.row, ceiling) if wish is not None else NONE
        if wish is None or row == NONE:
            self._launched.append(None)
            return plan
        tokens = len(plan.slots)
        prediction = self._predictor.predict(tokens, self._density(row, tokens))
        sparse = self._policy.choose(prediction) if wish.if_faster else True
        self._launched.append(_Launched(prediction, sparse, wish.if_faster))
        if not sparse:
            return plan
        return msgspec.structs.replace(plan, sparsity=self._path.rows[row].target)

    def _wish(self, plan: Plan) -> Wish | None:
        """What a step's requests allow together; None where the step cannot be sparse."""
        if plan.num_decodes < len(plan.slots) or len(plan.slots) > self._path.max_tokens:
            return None
        return together([self._of_slots[slot] for slot in plan.slots])

    def _density(self, row: int, tokens: int) -> float:
        known = self._densities.get((row, tokens))
        return self._path.expected_density(row, tokens) if known is None else known

    def observe(self, result: StepResult) -> None:
        """Takes the result of the oldest plan that has none yet."""
        launched = self._launched.popleft()
        if launched is not None:
            self._count(steps=launched.sparse)
            if result.seconds is not None:
                self._measured(launched, result.seconds)
        for probe in result.probes:
            self._probed(probe)

    def _measured(self, launched: _Launched, seconds: float) -> None:
        prediction, sparse, is_choice = launched
        self._predictor.observe(prediction, sparse=sparse, seconds=seconds)
        predicted = prediction.sparse if sparse else prediction.dense
        other = prediction.dense if sparse else prediction.sparse
        if not is_choice:
            return
        self._count(
            choices=1,
            predicted_seconds=predicted,
            measured_seconds=seconds,
            regret_seconds=max(0.0, seconds - other),
        )
        stats = self._stats
        if stats.choices % _REPORT_EVERY == 0:
            logger.info(
                "%d steps' paths chosen by cost: predicted %.1f s, took %.1f s, of which the other "
                "path would have saved %.1f s; %d sparse steps in all",
                stats.choices, stats.predicted_seconds, stats.measured_seconds,
                stats.regret_seconds, stats.steps,
            )  # fmt: skip

    def _probed(self, probe: StepProbe) -> None:
        if probe.num_broken:
            if self._ceiling.broken(probe.step):
                logger.warning(
                    "step %d: activations are not finite, or zeros alone: dense", probe.step
                )
                self._count(broken=1)
            return
        row = self._path.index_of(probe.sparsity)
        assert row is not None
        density = float(probe.union_densities @ self._path.site_weights)
        energy = float(probe.masked_energies @ self._path.site_weights)
        key = row, probe.num_tokens
        before = self._densities.get(key, density)
        self._densities[key] = before + _NEWEST * (density - before)
        self._stats = msgspec.structs.replace(
            self._stats, union_density=density, masked_energy=energy
        )
        if self._monitors[row].update(probe) and self._ceiling.drifted(row, probe.step):
            logger.info(
                "step %d: activations have drifted from the calibration for %g: %s",
                probe.step, probe.sparsity, self._ceiling_name(),
            )  # fmt: skip
            self._count(drifts=1)

    def _ceiling_name(self) -> str:
        row = self._ceiling.row
        return "dense" if row == NONE else f"that for {self._path.rows[row].target:g}"

    def _count(self, **more: float) -> None:
        sums = {name: getattr(self._stats, name) + value for name, value in more.items()}
        self._stats = msgspec.structs.replace(self._stats, **sums)


def _salt(sparsity: str | float | None, given: str | None) -> str | None:
    """A salt of its own for each sparsity, None being dense, and each salt that a client gives.

    Ours comes before theirs, so that none of theirs can spell another sparsity's.
    """
    if sparsity is None and given is None:
        return None
    ours = "dense" if sparsity is None else f"sparsity {sparsity}"
    return ours if given is None else f"{ours}\0{given}"
