"""Greedy outputs of an engine, and whether they are a reference's but for ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from _parity import distances
from inferx.engine.core import EngineCore
from inferx.engine.messages import EngineRequest
from inferx.engine.sampling import SamplingParams
from transformers import PreTrainedModel

Tokens = list[int]


class Verdict(NamedTuple):
    equal: int  # outputs that are the reference's, token by token
    worst: float  # nats: the largest distance from the reference's likeliest token


def generate(
    core: EngineCore, prompts: Sequence[Tokens], counts: Sequence[int], *, every: int = 0
) -> list[Tokens]:
    """So many greedy tokens for each prompt, all at once or one arriving every `every` steps."""
    waiting = [
        EngineRequest(uid, prompt, SamplingParams(temperature=0, max_tokens=count, ignore_eos=True))
        for uid, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
    ]
    got: list[Tokens] = [[] for _ in prompts]
    step = 0
    while core.has_work or waiting:
        while waiting and (not every or step % every == 0):
            core.add(waiting.pop(0))
            if every:
                break
        for output in core.step() if core.has_work else ():
            assert output.error is None, output.error
            got[output.uid] += output.token_ids
        step += 1
    return got


def check_greedy(
    reference: PreTrainedModel,
    prompts: Sequence[Tokens],
    outputs: Sequence[Tokens],
    counts: Sequence[int],
    *,
    tolerance: float,
) -> Verdict:
    """Every token, given the output before it, is the reference's likeliest or within `tolerance`
    nats of it. So an output is the reference's own, or it parts from it at a tie that rounding
    decides, and stays with what the reference holds likely from there.

    Raises AssertionError, naming the prompt and the token.
    """
    equal, worst = 0, 0.0
    rows = enumerate(zip(prompts, outputs, counts, strict=True))
    for number, (prompt, output, count) in rows:
        where = f"prompt {number} ({len(prompt)} tokens)"
        assert len(output) == count, f"{where} brought {len(output)} tokens, not {count}"
        apart = distances(reference, prompt, output)
        for place, distance in enumerate(apart):
            assert distance <= tolerance, (
                f"{where}: token {place} of the output is {distance:.3f} nats less likely than "
                f"the reference's; {tolerance} are allowed"
            )
        equal += max(apart) == 0
        worst = max(worst, *apart)
    return Verdict(equal, worst)
