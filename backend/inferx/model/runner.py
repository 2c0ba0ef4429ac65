"""ModelRunner: loads a model and executes plans on it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from inferx_kernels import ops
from torch import Tensor

from inferx.config import EngineConfig
from inferx.engine.messages import EngineInfo
from inferx.engine.plan import Plan, StepResult, TokenLogprobs
from inferx.model.batch import KVCache
from inferx.model.footprint import dtype_name, weight_bytes, weight_dtype
from inferx.model.input_batch import InputBatch, SamplingRows
from inferx.model.placement import (
    check_max_model_len,
    pick_device,
    pick_dtype,
    pick_kv_dtype,
    pick_weights,
    size_kv_cache,
)
from inferx.model.registry import load_config, load_model
from inferx.model.sampler import Sampler
from inferx.source import ModelSource

_MAX_LOGITS = 2**23  # 32 MiB of float32 at a time; the sampler takes a few times as much


class ModelRunner:
    """The Runner protocol. One thread executes the plans in their order.

    torch releases the GIL while it computes, so the thread that launches goes on meanwhile.
    What fails in a plan is raised by its `collect`.
    """

    def __init__(self, config: EngineConfig, source: ModelSource) -> None:
        """Loads the model. Raises ModelLoadError."""
        self._seconds: dict[str, float] = {}
        with self._timed("config"):
            model_config = load_config(source)
            check_max_model_len(config, source, model_config)
            device = pick_device(config)
            model_config = pick_weights(config, source, model_config, device)
            dtype = pick_dtype(config, model_config, device)
            kv_dtype = pick_kv_dtype(config, dtype, device)
        with self._timed("weights"):
            ops.use_batch_invariant(config.batch_invariant)
            self._model = load_model(source, model_config, dtype=dtype, device=device)
        with self._timed("kv_cache"):
            num_weight_bytes = weight_bytes(source, model_config, dtype)
            size = size_kv_cache(
                config,
                source,
                model_config,
                dtype=kv_dtype,
                device=device,
                weight_bytes=num_weight_bytes,
            )
            heads = model_config.num_kv_heads, model_config.head_dim
            shape = (size.num_blocks, config.block_size, *heads)
            # Uninitialized: on a CPU pages take no memory until they are first used
            self._kv = [
                KVCache(*(torch.empty(shape, dtype=kv_dtype, device=device) for _ in range(2)))
                for _ in range(model_config.num_layers)
            ]
            self._batch = InputBatch(
                config.max_num_seqs,
                max_model_len=size.max_model_len,
                block_size=config.block_size,
                device=device,
            )
            self._sampler = Sampler(
                config.max_num_seqs,
                vocab_size=model_config.vocab_size,
                eos_token_ids=model_config.eos_token_ids,
                device=device,
            )
        self._device = device
        self._rows_at_once = max(1, _MAX_LOGITS // model_config.vocab_size)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inferx-runner")
        self._launched: deque[Future[StepResult]] = deque()
        with self._timed("warm_up"):
            self.launch(_WARM_UP)
            self.collect()
        self.info = EngineInfo(
            max_model_len=size.max_model_len,
            vocab_size=model_config.vocab_size,
            eos_token_ids=list(model_config.eos_token_ids),
            block_size=config.block_size,
            num_blocks=size.num_blocks,
            device=device.type,
            dtype=dtype_name(dtype),
            weight_dtype=weight_dtype(model_config, dtype),
            kv_cache_dtype=dtype_name(kv_dtype),
            weight_bytes=num_weight_bytes,
            kv_cache_bytes=size.num_blocks * size.block_bytes,
            load_seconds=self._seconds,
        )

    def launch(self, plan: Plan) -> None:
        self._launched.append(self._thread.submit(self._execute, plan))

    def collect(self) -> StepResult:
        return self._launched.popleft().result()

    def close(self) -> None:
        """Waits for the plan that runs; those behind it are dropped."""
        self._thread.shutdown(cancel_futures=True)

    @torch.inference_mode()
    def _execute(self, plan: Plan) -> StepResult:
        for row in plan.new_rows:
            self._batch.add(row)
            self._sampler.add(row)
        self._batch.update_blocks(plan.block_updates)
        self._copy_pages(plan.page_copies)
        batch = self._batch.forward_batch(plan)
        hidden = self._model.forward(batch, self._kv)
        rows = self._batch.sampling_rows(plan)
        return self._sample(hidden[batch.logits_indices], rows)

    def _copy_pages(self, copies: list[tuple[int, int]]) -> None:
        if copies:
            sources, targets = torch.tensor(copies, device=self._device).unbind(1)
            ops.copy_pages((pages for cache in self._kv for pages in cache), sources, targets)

    def _sample(self, hidden: Tensor, rows: SamplingRows) -> StepResult:
        """A bounded number of rows at a time: logits and what is made of them are large."""
        token_ids: list[list[int]] = []
        logprobs: list[list[TokenLogprobs] | None] = []
        for start in range(0, len(hidden), self._rows_at_once):
            some = slice(start, start + self._rows_at_once)
            some_rows = SamplingRows(rows.slots[some], rows.positions[some])
            logits = self._model.logits(hidden[some])
            sampled = self._sampler.sample(logits, some_rows, self._batch.token_pool)
            self._batch.store(some_rows, sampled.token_ids)
            token_ids += [[token] for token in sampled.token_ids.tolist()]
            logprobs += [None if entry is None else [entry] for entry in sampled.logprobs]
        return StepResult(token_ids, logprobs)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._seconds[stage] = time.monotonic() - started


# A token of slot 0 into page 0: nobody has them yet.
_WARM_UP = Plan(
    step=0, slots=[0], starts=[0], num_tokens=[1], samples=[False], num_decodes=0,
    new_rows=[], block_updates=[], page_copies=[],
)  # fmt: skip
