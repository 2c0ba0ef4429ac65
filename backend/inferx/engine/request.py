"""Request: what the scheduler knows of one request. Only the scheduler writes it."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from inferx.engine.messages import EngineRequest, FinishReason
from inferx.memory.block_table import BlockTable


class Status(Enum):
    WAITING = "waiting"  # no slot, no pages; a sampled token may still be in flight
    PREFILLING = "prefilling"  # tokens besides the last are still to be computed
    DECODING = "decoding"  # only the last token, known or in flight, is to be computed
    DRAINING = "draining"  # planned up to its length; no slot, no pages, the end is in flight
    ENDED = "ended"


class Request:
    """`num_computed_tokens` chases `num_tokens`; a token in flight counts, its id is not known."""

    __slots__ = (
        "admitted_at",
        "arrived_at",
        "blocks",
        "earliest_stop",
        "has_started",
        "max_num_tokens",
        "num_admissions",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_tokens",
        "order",
        "sampling",
        "seed",
        "slot",
        "status",
        "stop_token_ids",
        "token_ids",
        "uid",
    )

    def __init__(
        self,
        request: EngineRequest,
        blocks: BlockTable,
        *,
        arrival: int,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        arrived_at: float = 0.0,
    ) -> None:
        sampling = request.sampling
        self.uid = request.uid
        self.sampling = sampling
        self.seed = sampling.seed  # None: drawn at the first admission
        self.order = (sampling.priority, arrival)  # the least is served first
        self.status = Status.WAITING
        self.num_admissions = 0
        self.arrived_at = arrived_at  # of the scheduler's clock
        self.admitted_at = arrived_at  # for the first time
        self.num_cached_tokens = 0  # of the prompt, likewise
        self.has_started = False  # its first token is known
        self.slot = -1  # the runner's row, while admitted
        self.blocks = blocks

        self.token_ids = list(request.prompt_token_ids)  # prompt and output, as far as known
        self.num_prompt_tokens = len(self.token_ids)
        self.num_tokens = self.num_prompt_tokens  # known or in flight
        self.num_computed_tokens = 0  # by the plans made so far, for the pages it holds now
        assert sampling.max_tokens is not None  # the scheduler knows what null stands for
        self.max_num_tokens = min(self.num_prompt_tokens + sampling.max_tokens, max_model_len)

        self.stop_token_ids = _stop_token_ids(
            eos_token_ids, sampling.stop_token_ids, sampling.ignore_eos
        )
        self.earliest_stop = self.num_prompt_tokens + sampling.min_tokens  # position

    def finish_reason(self, token: int, num_tokens: int) -> FinishReason | None:
        """How the request ends, if it does, with `token` as the last of `num_tokens`."""
        if token in self.stop_token_ids and num_tokens > self.earliest_stop:
            return "stop"
        return "length" if num_tokens == self.max_num_tokens else None

    def take_several(self, tokens: list[int]) -> int:
        """How many of these tokens it takes: up to the one that ends it. Those before the last
        count as computed."""
        num_known = len(self.token_ids)
        if self.num_tokens != num_known + 1:
            raise ValueError("several tokens came for a row whose successor is in flight")
        for taken, token in enumerate(tokens, 1):
            if self.finish_reason(token, num_known + taken) is not None:
                break
        self.num_tokens = num_known + taken
        if self.status is Status.DECODING:
            self.num_computed_tokens += taken - 1
            if self.num_computed_tokens > self.blocks.capacity:
                raise ValueError("more tokens came for a row than there were pages reserved for")
        return taken


def _stop_token_ids(
    eos_token_ids: frozenset[int], stop_token_ids: Collection[int], ignore_eos: bool
) -> frozenset[int]:
    if ignore_eos:
        return frozenset(stop_token_ids)
    return eos_token_ids.union(stop_token_ids) if stop_token_ids else eos_token_ids
