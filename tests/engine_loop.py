"""The engine's loop in the test's own process: a runner behind a scheduler, and what requests that
begin together get of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferx.config import EngineConfig
from inferx.engine.core import EngineCore
from inferx.engine.messages import EngineRequest, RequestOutput
from inferx.engine.sampling import SamplingParams
from inferx.engine.scheduler import Scheduler
from inferx.engine.step_paths import StepPaths
from inferx.memory.pool import PagePool
from inferx.model.runner import ModelRunner

if TYPE_CHECKING:
    from inferx.model.gpu.runner import GpuRunner  # imports Triton

Tokens = list[int]


def make_core(
    config: EngineConfig,
    runner: ModelRunner | GpuRunner,
    *,
    caching: bool = False,
    budget: int = 64,
) -> EngineCore:
    """caching: of prefixes; budget: tokens of a step."""
    info = runner.info
    scheduler = Scheduler(
        pool=PagePool(info.num_blocks, info.block_size, enable_prefix_caching=caching),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=info.max_model_len,
        eos_token_ids=info.eos_token_ids,
    )
    paths = StepPaths.of(config, info.sparse_path)
    return EngineCore(scheduler, runner, overlap=config.enable_async_batch, paths=paths)


def serve(
    core: EngineCore, prompts: Sequence[Tokens], params: SamplingParams | Sequence[SamplingParams]
) -> list[list[RequestOutput]]:
    """Everything that comes for each prompt, until the last request has ended."""
    several = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    for uid, (prompt, one) in enumerate(zip(prompts, several, strict=True)):
        core.add(EngineRequest(uid, prompt, one))
    got: list[list[RequestOutput]] = [[] for _ in prompts]
    while core.has_work:
        for output in core.step():
            assert output.error is None, output.error
            got[output.uid].append(output)
    return got


def tokens_of(outputs: Sequence[RequestOutput]) -> Tokens:
    return [token for output in outputs for token in output.token_ids]
