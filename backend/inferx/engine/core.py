"""EngineCore: the loop's one step, plan -> forward -> update, overlapped."""

from __future__ import annotations

from time import perf_counter

import msgspec

from inferx.engine.messages import (
    STEP_TIME_BOUNDS,
    EngineRequest,
    EngineStats,
    RequestOutput,
    SparseStats,
)
from inferx.engine.plan import Runner
from inferx.engine.scheduler import Scheduler
from inferx.engine.step_paths import StepPaths
from inferx.observe.histogram import Histogram


class EngineCore:
    """Drives a runner by a scheduler's plans. Call `step` while `has_work`; one thread only."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        overlap: bool,
        paths: StepPaths | None = None,
    ) -> None:
        """paths: chooses each step's path; None: every step is dense."""
        self._scheduler = scheduler
        self._paths = paths
        self._runner = runner
        self._overlap = overlap
        self._step_time = Histogram(STEP_TIME_BOUNDS)
        self._batch_size = 0

    def add(self, request: EngineRequest) -> None:
        """Raises InvalidArgument for a request that could never be served to its end."""
        if self._paths is not None:
            request = self._paths.resolved(request)
        self._scheduler.add(request)

    def abort(self, uid: int) -> None:
        """No output of this request comes any more; unknown ones are ignored."""
        self._scheduler.abort(uid)

    @property
    def has_work(self) -> bool:
        """True too while only results are in flight that nobody waits for any more."""
        return self._scheduler.has_unfinished or self._scheduler.num_in_flight > 0

    def step(self) -> list[RequestOutput]:
        """Plans and launches a step, then takes the result of the one launched before it.

        Without overlap, or when there is nothing to launch, no result is left in flight longer
        than that: the oldest is waited for and taken.
        """
        begin = perf_counter()
        plan = self._scheduler.plan()
        if plan is not None:
            if self._paths is not None:
                plan = self._paths.choose(plan)
            self._runner.launch(plan)
            self._batch_size = len(plan.slots)
        left_in_flight = 1 if self._overlap and plan is not None else 0
        outputs: list[RequestOutput] = []
        if self._scheduler.num_in_flight > left_in_flight:
            result = self._runner.collect()
            outputs = self._scheduler.update(result)
            if self._paths is not None:
                self._paths.observe(result)
        self._step_time.observe(perf_counter() - begin)
        return outputs

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(
            self._scheduler.stats(),
            batch_size=self._batch_size if self.has_work else 0,
            sparse=SparseStats() if self._paths is None else self._paths.stats,
            step_seconds=self._step_time.sum,
            step_time_counts=tuple(self._step_time.counts),
        )
