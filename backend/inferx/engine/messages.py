"""What the two processes say to each other: msgpack, no pickle.

Parent to engine: StartEngine once, then AddRequests, AbortRequests, Ping, StopEngine.
Engine to parent: EngineLoading, EngineReady or EngineFailed, then StepOutputs and Pong.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inferx.config import EngineConfig
from inferx.engine.plan import TokenLogprobs
from inferx.engine.sampling import SamplingParams
from inferx.errors import Status

FinishReason = Literal["stop", "length"]


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


class EngineLoading(msgspec.Struct, frozen=True, tag="loading"):
    """Both sides have heard each other."""


class EngineReady(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine could not start; one sentence."""

    message: str


class EngineStats(msgspec.Struct, frozen=True):
    """Gauges and counters since the start. free + cached + used blocks are all blocks."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    used_blocks: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_cache_queries: int = 0  # tokens
    prefix_cache_hits: int = 0  # tokens
    preemptions: int = 0
    step_seconds: float = 0.0  # spent in steps


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    number: int
    stats: EngineStats


class RequestOutput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a step brought for one request. With `finish_reason` or `error` it is the last."""

    uid: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the EOS or stop token that ended it, last of token_ids
    logprobs: list[TokenLogprobs] | None = None
    error: tuple[Status, str] | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None


class StepOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    outputs: list[RequestOutput]


ToEngine = StartEngine | AddRequests | AbortRequests | Ping | StopEngine
FromEngine = EngineLoading | EngineReady | EngineFailed | StepOutputs | Pong
