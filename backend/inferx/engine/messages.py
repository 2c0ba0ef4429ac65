"""What the two processes say to each other: msgpack, no pickle.

Parent to engine: StartEngine once, then AddRequests, AbortRequests, Ping, StopEngine.
Engine to parent: EngineLoading, EngineReady or EngineFailed, then StepOutputs and Pong.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from inferx.config import EngineConfig
from inferx.engine.plan import TokenLogprobs
from inferx.engine.sampling import SamplingParams
from inferx.errors import Status
from inferx.observe.histogram import Histogram
from inferx.paths.info import SparsePath

FinishReason: TypeAlias = Literal["stop", "length"]


class EngineRequest(msgspec.Struct, frozen=True, array_like=True):
    """One sequence to generate (`n` choices are `n` of them). `uid` is unique for the client."""

    uid: int
    prompt_token_ids: list[int]
    sampling: SamplingParams


class StartEngine(msgspec.Struct, frozen=True, tag="start"):
    config: EngineConfig


class AddRequests(msgspec.Struct, frozen=True, tag="add"):
    requests: list[EngineRequest]


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Ends requests without a further output; unknown uids are ignored (they ended meanwhile)."""

    uids: list[int]


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    number: int


class StopEngine(msgspec.Struct, frozen=True, tag="stop"):
    pass


class EngineInfo(msgspec.Struct, frozen=True):
    """What the loaded engine is: the limits that requests are checked against."""

    max_model_len: int  # tokens, prompt and output
    vocab_size: int
    eos_token_ids: list[int]
    block_size: int  # tokens a page
    num_blocks: int
    device: str
    dtype: str  # of activations, and of the weights that are not the layers'
    weight_dtype: str  # of the layers' weights: the same, or fp8
    kv_cache_dtype: str
    weight_bytes: int
    kv_cache_bytes: int
    load_seconds: dict[str, float]  # a stage of the start each
    sparse_path: SparsePath | None = None  # None: every step is dense


class EngineLoading(msgspec.Struct, frozen=True, tag="loading"):
    """Both sides have heard each other."""


class EngineReady(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine could not start; one sentence."""

    message: str


# Seconds a step takes: the bounds of EngineStats.step_time_counts
STEP_TIME_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class SparseStats(msgspec.Struct, frozen=True):
    """Of the sparse path since the start; the first two are gauges."""

    union_density: float = 0.0  # share of the layers' weights that the last probed step read
    masked_energy: float = 0.0  # rho of that step, a mean over products by their weights
    steps: int = 0  # sparse ones
    choices: int = 0  # steps whose requests left the path to their costs
    drifts: int = 0
    broken: int = 0  # times that activations were not finite, or zeros alone
    predicted_seconds: float = 0.0  # of the choices, and what they took
    measured_seconds: float = 0.0
    regret_seconds: float = 0.0  # beyond what the other path was predicted to take


class EngineStats(msgspec.Struct, frozen=True):
    """Gauges and counters since the start. free + cached + used blocks are all blocks."""

    batch_size: int = 0  # sequences in the last step; 0 while there is nothing to do
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    used_blocks: int = 0
    memory_resident: int = 0  # bytes, as observe/memory.py counts them
    memory_peak: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_cache_queries: int = 0  # tokens
    prefix_cache_hits: int = 0  # tokens
    preemptions: int = 0
    sparse: SparseStats = SparseStats()
    step_seconds: float = 0.0  # spent in steps
    step_time_counts: tuple[int, ...] = (0,) * (len(STEP_TIME_BOUNDS) + 1)

    @property
    def step_time(self) -> Histogram:
        """Seconds."""
        return Histogram(STEP_TIME_BOUNDS, self.step_time_counts, self.step_seconds)


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    number: int
    stats: EngineStats


class RequestStart(msgspec.Struct, frozen=True, array_like=True):
    """How a request began."""

    queue: float  # seconds from its arrival in the engine to its first place in a step
    prefill: float  # seconds from there to its first token
    cached_tokens: int  # of the prompt, found in the prefix cache


class RequestOutput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a step brought for one request. With `finish_reason` or `error` it is the last."""

    uid: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the EOS or stop token that ended it, last of token_ids
    logprobs: list[TokenLogprobs] | None = None
    error: tuple[Status, str] | None = None
    start: RequestStart | None = None  # with the first tokens

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None


class StepOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    outputs: list[RequestOutput]


ToEngine = StartEngine | AddRequests | AbortRequests | Ping | StopEngine
FromEngine = EngineLoading | EngineReady | EngineFailed | StepOutputs | Pong
