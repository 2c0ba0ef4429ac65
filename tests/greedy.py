"""Greedy outputs of an engine, and whether they are a reference's but for ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from _parity import distances
from inferx.engine.core import EngineCore
from inferx.engine.messages import EngineRequest
from inferx.engine.sampling import SamplingParams
from transformers import PreTrainedModel

Tokens = list[int]


class Ties(NamedTuple):
    """How far a token may be from the reference's likeliest, in nats: `usual`, but for a `share`
    of the tokens `most`."""

    usual: float
    most: float
    share: float


# Against float32, correct bfloat16 (the CPU's) is beyond 0.1 nats at 4 of SmolLM2's 1,664 tokens,
# 0.22 at most.
BF16_TIES = Ties(usual=0.1, most=0.3, share=0.01)
# Tiny models' weights are drawn wide: larger logits, larger steps between two of bfloat16's. With
# heads of 80, correct bfloat16 (a CPU's) is beyond 0.3 nats at 2 of 280 tokens.
TINY_TIES = Ties(usual=0.3, most=1.0, share=0.02)


class Verdict(NamedTuple):
    equal: int  # outputs that are the reference's, token by token
    beyond: int  # tokens farther from the reference's likeliest than is usual
    worst: float  # nats


class Reference:
    """A model that judges outputs, each of them once."""

    def __init__(self, model: PreTrainedModel, frequency_penalty: float = 0) -> None:
        self.model = model
        self._frequency_penalty = frequency_penalty
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}

    def distances(self, prompt: Tokens, output: Tokens) -> list[float]:
        """Nats between each token of the output and the likeliest one there."""
        key = tuple(prompt), tuple(output)
        if key not in self._known:
            self._known[key] = distances(self.model, prompt, output, self._frequency_penalty)
        return self._known[key]


def generate(
    core: EngineCore,
    prompts: Sequence[Tokens],
    counts: Sequence[int],
    *,
    every: int = 0,
    frequency_penalty: float = 0,
) -> list[Tokens]:
    """So many greedy tokens for each prompt, all at once or one arriving every `every` steps."""
    always = SamplingParams(temperature=0, ignore_eos=True, frequency_penalty=frequency_penalty)
    waiting = [
        EngineRequest(uid, prompt, msgspec.structs.replace(always, max_tokens=count))
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
    reference: Reference,
    prompts: Sequence[Tokens],
    outputs: Sequence[Tokens],
    counts: Sequence[int],
    ties: Ties = BF16_TIES,
) -> Verdict:
    """Every token, given the output before it, is the reference's likeliest or nearly as likely.
    So an output is the reference's own, or it parts from it at a tie that rounding decides, and
    stays with what the reference holds likely from there.

    Raises AssertionError, naming the prompt and the token, or how many tokens are beyond the
    usual.
    """
    equal, beyond, worst = 0, 0, 0.0
    rows = enumerate(zip(prompts, outputs, counts, strict=True))
    for number, (prompt, output, count) in rows:
        where = f"prompt {number} ({len(prompt)} tokens)"
        assert len(output) == count, f"{where} brought {len(output)} tokens, not {count}"
        apart = reference.distances(prompt, output)
        for place, distance in enumerate(apart):
            assert distance <= ties.most, (
                f"{where}: token {place} of the output is {distance:.3f} nats less likely than "
                f"the reference's; {ties.most} are allowed"
            )
        equal += max(apart) == 0
        beyond += sum(distance > ties.usual for distance in apart)
        worst = max(worst, *apart)
    total = sum(counts)
    assert beyond <= ties.share * total, (
        f"{beyond} of {total} tokens are more than {ties.usual} nats less likely than the "
        f"reference's; a share of {ties.share} is allowed"
    )
    return Verdict(equal, beyond, worst)
