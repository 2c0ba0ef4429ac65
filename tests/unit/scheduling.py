"""Short words for scheduler tests: a scheduler, requests, plans as rows, results as tokens."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec
from inferx.engine.messages import EngineRequest, RequestOutput
from inferx.engine.plan import Plan, StepResult
from inferx.engine.sampling import SamplingParams
from inferx.engine.scheduler import Scheduler
from inferx.memory.pool import PagePool

EOS = (2, 3)


def make_scheduler(
    num_blocks: int = 64,
    *,
    block_size: int = 16,
    max_num_seqs: int = 4,
    budget: int = 64,
    max_model_len: int = 256,
    caching: bool = True,
    seed: int = 0,
    clock: Callable[[], float] = monotonic,
) -> Scheduler:
    return Scheduler(
        pool=PagePool(num_blocks, block_size, enable_prefix_caching=caching),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        eos_token_ids=EOS,
        seed=seed,
        clock=clock,
    )


def prompt_of(length: int, first: int = 100) -> list[int]:
    """Prompts with different `first` share no prefix."""
    return list(range(first, first + length))


def request(uid: int, prompt: int | list[int], **sampling: Any) -> EngineRequest:
    """`prompt`: token ids, or a length; then no other request has that prefix."""
    if isinstance(prompt, int):
        prompt = prompt_of(prompt, 1000 * (uid + 1))
    return EngineRequest(uid, prompt, SamplingParams(**{"max_tokens": 20, "seed": 7, **sampling}))


def planned(scheduler: Scheduler) -> Plan:
    plan = scheduler.plan()
    assert plan is not None
    return plan


def rows(plan: Plan) -> list[tuple[int, int, int, bool]]:
    """slot, start, tokens, samples: a row each."""
    return list(zip(plan.slots, plan.starts, plan.num_tokens, plan.samples, strict=True))


def result(*tokens: int | list[int]) -> StepResult:
    """One token or several for each sampling row."""
    lists = [[token] if isinstance(token, int) else token for token in tokens]
    return StepResult(lists, [None] * len(lists))


def without_start(outputs: list[RequestOutput]) -> list[RequestOutput]:
    """The outputs without the times of their requests' start."""
    return [msgspec.structs.replace(output, start=None) for output in outputs]


def step(scheduler: Scheduler, *tokens: int) -> list[RequestOutput]:
    """A step without overlap."""
    planned(scheduler)
    return without_start(scheduler.update(result(*tokens)))
