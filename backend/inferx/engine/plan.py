"""Plan: what one step does, as plain data. StepResult: what came of it.

The scheduler makes a Plan, the runner executes it. Plans are executed in the order in which they
are launched, on one stream, so a page or a slot that a plan frees may be given away in the very
next one: its new owner writes after its last reader. Tensor-parallel ranks will get the same
Plan, hence no references to objects of the scheduler in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from inferx.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from inferx.paths.probe import StepProbe  # imports numpy


class NewRow(msgspec.Struct, frozen=True, array_like=True):
    """A request takes a slot (first admission, or again after a preemption)."""

    slot: int
    token_ids: list[int]  # prompt, and after a preemption the outputs so far
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int  # resolved: the client's, or one drawn at admission


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """One step. Rows are parallel lists, pure decodes first.

    A row computes `num_tokens[i]` tokens from position `starts[i]` on; their ids are in the
    runner's token pool (`token_pool[slot, position]`), where earlier steps, read or not, have
    left what they sampled. A row with `samples[i]` samples the token at position
    `starts[i] + num_tokens[i]` and stores it in the pool.
    """

    step: int
    slots: list[int]
    starts: list[int]
    num_tokens: list[int]
    samples: list[bool]
    num_decodes: int  # rows [0, num_decodes) compute one token and sample
    new_rows: list[NewRow]
    block_updates: list[tuple[int, int, list[int]]]  # slot, first index in its block_table, pages
    page_copies: list[tuple[int, int]]  # source page, target page; before the forward pass
    sparsity: float = 0.0  # of the calibrated row that masks its decodes' inputs; 0: dense


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one output position, of the distribution before temperature."""

    logprob: float  # the sampled token's
    rank: int  # the sampled token's, from 1
    top_ids: list[int]  # likeliest first
    top_logprobs: list[float]


class StepResult(NamedTuple):
    """What a plan's sampling rows (those with `samples`, in order) brought."""

    token_ids: list[list[int]]  # a list a row: speculative decoding brings several
    logprobs: list[list[TokenLogprobs] | None]  # None: not asked for
    seconds: float | None = None  # that the device worked on the step; None: not measured
    probes: Sequence[StepProbe] = ()  # of sparse steps before this one, some at a time


class Runner(Protocol):
    """Executes plans in order. `launch` does not wait; `collect` waits for the oldest launched."""

    def launch(self, plan: Plan) -> None: ...

    def collect(self) -> StepResult: ...

    def close(self) -> None: ...
