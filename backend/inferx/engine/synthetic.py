"""SyntheticRunner: emits tokens at a fixed step time, without a model.

For load tests of everything but the forward pass: scheduler, wire, channel and text are the real
ones, and each request reads the same paragraph from its beginning.
"""

from __future__ import annotations

import time
from collections import deque
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from inferx.config import EngineConfig
from inferx.engine.messages import EngineInfo
from inferx.engine.plan import Plan, StepResult, TokenLogprobs
from inferx.engine.sampling import MAX_LOGPROBS

if TYPE_CHECKING:
    from inferx.text.tokenizer import Tokenizer

PARAGRAPH = """\
 The lighthouse keeper wrote down what the sea did, every hour, in a book with a green cover. \
At nine the wind came round to the west; by ten the fishing boats had turned for home, their \
lamps bobbing like a row of slow sparks. He counted them twice, because his father had taught \
him to, and because a number that is counted twice is a number one may sleep on. "Fourteen," he \
said to the cat, "and fourteen it was this morning." The cat, which held no opinion of boats, \
looked at the stove.
"""
DEFAULT_MAX_MODEL_LEN = 8192  # tokens
TYPICAL_LEN = 1024  # tokens; the pool is made for max_num_seqs requests of this length
_VOCAB_SIZE = 32_000  # without a tokenizer
_PERIOD = 509  # distinct ids without a tokenizer, a prime
_STRIDE = 61  # between neighbouring ids; coprime to _PERIOD


class _Launched(NamedTuple):
    ends_at: float  # time.monotonic seconds
    result: StepResult


class SyntheticRunner:
    """The Runner protocol over a clock.

    A step launched while another is in flight follows it without a gap, whatever the host does in
    between: with overlap, `1 / synthetic_step_time` steps a second are offered on an absolute
    schedule, and a delay of the host is made up for. Without overlap a step starts at its launch.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None) -> None:
        started = time.monotonic()
        self._step_time = config.synthetic_step_time
        self._token_ids = _pseudo_text(tokenizer)
        self._likeliest = list(dict.fromkeys(self._token_ids))[: MAX_LOGPROBS + 1]
        self._num_prompt_tokens: dict[int, int] = {}  # slot -> tokens
        self._num_logprobs: dict[int, int | None] = {}  # slot -> SamplingParams.logprobs
        self._launched: deque[_Launched] = deque()
        max_model_len = config.max_model_len or DEFAULT_MAX_MODEL_LEN
        blocks_a_request = ceil(min(max_model_len, TYPICAL_LEN) / config.page_size("cpu"))
        longest = ceil(max_model_len / config.page_size("cpu")) + 1
        self.info = EngineInfo(
            max_model_len=max_model_len,
            vocab_size=tokenizer.vocab_size if tokenizer else _VOCAB_SIZE,
            eos_token_ids=[],
            block_size=config.page_size("cpu"),
            num_blocks=config.num_gpu_blocks_override
            or max(longest, config.max_num_seqs * blocks_a_request),
            device="synthetic",
            dtype="none",
            weight_dtype="none",
            kv_cache_dtype="none",
            weight_bytes=0,
            kv_cache_bytes=0,
            load_seconds={"synthetic": time.monotonic() - started},
        )

    def launch(self, plan: Plan) -> None:
        for row in plan.new_rows:
            self._num_prompt_tokens[row.slot] = row.num_prompt_tokens
            self._num_logprobs[row.slot] = row.sampling.logprobs
        starts_at = self._launched[-1].ends_at if self._launched else time.monotonic()
        self._launched.append(_Launched(starts_at + self._step_time, self._result(plan)))

    def collect(self) -> StepResult:
        step = self._launched.popleft()
        time.sleep(max(0.0, step.ends_at - time.monotonic()))
        return step.result

    def close(self) -> None:
        self._launched.clear()

    def _result(self, plan: Plan) -> StepResult:
        token_ids: list[list[int]] = []
        logprobs: list[list[TokenLogprobs] | None] = []
        for slot, start, num_tokens, samples in zip(
            plan.slots, plan.starts, plan.num_tokens, plan.samples, strict=True
        ):
            if not samples:
                continue
            token_id = self._token_at(start + num_tokens - self._num_prompt_tokens[slot])
            token_ids.append([token_id])
            logprobs.append(self._logprobs(token_id, self._num_logprobs[slot]))
        return StepResult(token_ids, logprobs)

    def _token_at(self, index: int) -> int:
        return self._token_ids[index % len(self._token_ids)]

    def _logprobs(self, token_id: int, num_logprobs: int | None) -> list[TokenLogprobs] | None:
        """The emitted token is certain; the others are far behind."""
        if num_logprobs is None:
            return None
        top_ids = [token_id, *(other for other in self._likeliest if other != token_id)]
        top_logprobs = [0.0] + [-20.0] * MAX_LOGPROBS
        return [TokenLogprobs(0.0, 1, top_ids[:num_logprobs], top_logprobs[:num_logprobs])]


def _pseudo_text(tokenizer: Tokenizer | None) -> list[int]:
    if tokenizer is None:
        return [3 + (index * _STRIDE) % _PERIOD for index in range(_PERIOD)]
    return tokenizer.encode(PARAGRAPH, add_special_tokens=False)
