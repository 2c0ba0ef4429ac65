"""A step whose results are on their way."""

from __future__ import annotations

from typing import NamedTuple

from inferx_kernels import ops

from inferx.engine.plan import StepResult
from inferx.model.gpu.stopwatch import StopWatch
from inferx.model.sampler import RowLogprobs, Sampled
from inferx.model.upload import Download


class Launched(NamedTuple):
    download: Download  # the tokens, and the tensors of `logprobs`
    logprobs: RowLogprobs | None
    watch: StopWatch | None = None  # of steps whose path may be chosen

    def result(self) -> StepResult:
        """Waits for them."""
        token_ids, *tensors = self.download.wait()
        logprobs = self.logprobs
        if logprobs is not None:
            logprobs = logprobs._replace(tensors=ops.LogprobsTensors(*tensors))
        entries = Sampled(token_ids, logprobs).logprobs
        return StepResult(
            [[token] for token in token_ids.tolist()],
            [None if entry is None else [entry] for entry in entries],
            seconds=None if self.watch is None else self.watch.seconds,
        )
