"""A step whose results are on their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferx_kernels import ops

from inferx.engine.plan import StepResult
from inferx.model.gpu.stopwatch import StopWatch
from inferx.model.sampler import RowLogprobs, Sampled
from inferx.model.upload import Download
from inferx.sparse.probe import ProbeCopy


class Launched(NamedTuple):
    download: Download  # the tokens, and the tensors of `logprobs`
    logprobs: RowLogprobs | None
    watch: StopWatch | None = None  # of steps whose path may be chosen
    probes: Sequence[ProbeCopy] = ()  # of steps before it

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
            probes=[probe for copy in self.probes for probe in copy.read()],
        )
