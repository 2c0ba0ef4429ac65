"""GpuRunner: executes plans on a Llama-like model without ever waiting for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from inferx_kernels import ops
from inferx_kernels.rope import Rotation
from inferx_kernels.triton.inputs import StepInputs, StepRows, prepare_inputs, store_tokens
from torch import Tensor

from inferx.config import EngineConfig
from inferx.engine.plan import NewRow, Plan, StepResult
from inferx.engine.sampling import SamplingParams
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import AttentionShape, StepAttention, prompt_rows
from inferx.model.gpu.graphs import DecodeGraphs
from inferx.model.gpu.llama import GpuLlama
from inferx.model.gpu.sampler import GpuSampler
from inferx.model.gpu.slots import Slots
from inferx.model.gpu.upload import Download, upload
from inferx.model.input_batch import SamplingRows
from inferx.model.llama import LlamaForCausalLM
from inferx.model.loading import LoadedModel, Stages
from inferx.model.placement import size_kv_cache
from inferx.model.sampler import RowLogprobs, Sampled


class _Launched(NamedTuple):
    """A step whose results are on their way."""

    download: Download  # the tokens, and the tensors of `logprobs`
    logprobs: RowLogprobs | None

    def result(self) -> StepResult:
        token_ids, *tensors = self.download.wait()
        logprobs = self.logprobs
        if logprobs is not None:
            logprobs = logprobs._replace(tensors=ops.LogprobsTensors(*tensors))
        entries = Sampled(token_ids, logprobs).logprobs
        return StepResult(
            [[token] for token in token_ids.tolist()],
            [None if entry is None else [entry] for entry in entries],
        )


class GpuRunner:
    """The Runner protocol. Steps are launched in order on one stream, from the caller's thread.

    On a CPU, where Triton's interpreter runs the kernels, it does the same without graphs: so that
    its tests run anywhere.
    """

    def __init__(self, config: EngineConfig, loaded: LoadedModel, stages: Stages) -> None:
        """Raises ModelLoadError."""
        model = loaded.model
        assert isinstance(model, LlamaForCausalLM)
        self._device = loaded.device
        self._stream = torch.cuda.Stream() if self._device.type == "cuda" else None
        self._launched: deque[_Launched] = deque()
        self._model = GpuLlama(model, loaded.dtype)
        self._shape = AttentionShape.of(loaded.config)
        self._block_size = config.page_size(self._device.type)
        self._page_dtype = loaded.kv_dtype
        self._sampler = GpuSampler(
            config.max_num_seqs,
            vocab_size=loaded.config.vocab_size,
            eos_token_ids=loaded.config.eos_token_ids,
            device=self._device,
        )
        limit = config.max_model_len or loaded.config.max_position_embeddings
        self._slots = Slots(
            config.max_num_seqs,
            max_model_len=limit,
            block_size=config.page_size(self._device.type),
            rotation=model.rotation(torch.arange(limit, device=self._device)),
        )
        with stages("profile"), self._computing():
            activation_bytes = self._profile(config, loaded)
        with stages("kv_cache"), self._computing():
            size = size_kv_cache(
                config,
                loaded.source,
                loaded.config,
                dtype=self._page_dtype,
                device=self._device,
                weight_bytes=loaded.weight_bytes,
                activation_bytes=activation_bytes,
            )
            self._kv = [
                self._pages(size.num_blocks, loaded) for _ in range(loaded.config.num_layers)
            ]
        with stages("graphs"), self._computing():
            self._graphs = DecodeGraphs(
                self._model,
                self._slots,
                self._sampler,
                self._kv,
                self._shape,
                max_num_seqs=config.max_num_seqs,
                vocab_size=loaded.config.vocab_size,
            )
        self.info = loaded.info(config, size, stages)

    def launch(self, plan: Plan) -> None:
        with self._computing():
            self._launched.append(self._execute(plan))

    def collect(self) -> StepResult:
        return self._launched.popleft().result()

    def close(self) -> None:
        """Waits for the device."""
        if self._stream is not None:
            self._stream.synchronize()
        self._launched.clear()

    @contextmanager
    def _computing(self) -> Iterator[None]:
        on_stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with torch.inference_mode(), on_stream:
            yield

    def _execute(self, plan: Plan) -> _Launched:
        self._slots.apply(plan)
        self._sampler.add(plan.new_rows)
        self._copy_pages(plan.page_copies)
        rows = SamplingRows.of(plan)
        if plan.num_decodes == len(plan.slots):
            logits = self._graphs.forward(plan)
            if not self._sampler.needs_reading(rows.slots):
                return _Launched(Download([self._graphs.sample(plan)]), None)
        else:
            hidden = self._forward(plan, self._kv)
            if not len(rows.slots):  # prompts that go on in the next step
                return _Launched(Download([hidden.new_empty(0, dtype=torch.int64)]), None)
            logits = self._model.logits(hidden)
        sampled = self._sampler.sample(logits, rows, self._slots.state.token_pool)
        self._store(rows, sampled.token_ids)
        tensors = [] if sampled.row_logprobs is None else list(sampled.row_logprobs.tensors)
        return _Launched(Download([sampled.token_ids, *tensors]), sampled.row_logprobs)

    def _forward(self, plan: Plan, kv: list[KVCache]) -> Tensor:
        """A step with prompts in it; returns the sampling rows' hidden states."""
        counts = np.array(plan.num_tokens)
        ends = counts.cumsum()
        seq_lens = np.array(plan.starts) + counts
        num_rows, num_tokens = len(counts), int(ends[-1])
        packed = self._upload(np.concatenate([plan.slots, plan.starts, [0], ends]))
        rows = StepRows(*packed.split([num_rows, num_rows, num_rows + 1]))
        inputs = self._inputs(num_rows, num_tokens, -(-int(seq_lens.max()) // self._block_size))
        prepare_inputs(
            rows,
            self._slots.state,
            inputs,
            block_size=self._block_size,
            max_query_len=int(counts.max()),
        )
        decodes = plan.num_decodes
        max_tokens = int(seq_lens[:decodes].sum())
        plans = self._shape.decode_plans(decodes, max_tokens, self._device) if decodes else {}
        prompts = prompt_rows(
            inputs, rows.query_start, decodes, seq_lens[decodes:].tolist(), kv[0].k.dtype
        )
        hidden = self._model.forward(StepAttention(inputs, decodes, plans, prompts), kv)
        samples = np.array(plan.samples, dtype=bool)
        return hidden[self._upload(ends[samples] - 1)]

    def _inputs(self, num_rows: int, num_tokens: int, num_columns: int) -> StepInputs:
        def empty(*size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, device=self._device)

        rotary_dim = self._slots.state.rotation.cos.shape[-1]
        angles = (empty(num_tokens, 1, rotary_dim, dtype=torch.float32) for _ in range(2))
        return StepInputs(
            empty(num_tokens, dtype=torch.int64),
            empty(num_tokens, dtype=torch.int64),
            Rotation(*angles),
            empty(num_rows, dtype=torch.int32),
            empty(num_rows, num_columns, dtype=torch.int32),
        )

    def _store(self, rows: SamplingRows, token_ids: Tensor) -> None:
        slots, positions = self._upload(rows.slots), self._upload(rows.positions)
        store_tokens(self._slots.state.token_pool, slots, positions, token_ids)

    def _copy_pages(self, copies: list[tuple[int, int]]) -> None:
        if copies:
            sources, targets = upload(np.array(copies, np.int64).T.copy(), self._device)
            ops.copy_pages((pages for cache in self._kv for pages in cache), sources, targets)

    def _upload(self, values: np.ndarray) -> Tensor:
        return upload(values.astype(np.int32), self._device)

    def _pages(self, num_blocks: int, loaded: LoadedModel) -> KVCache:
        heads = loaded.config.num_kv_heads, loaded.config.head_dim
        shape = (num_blocks, self._block_size, *heads)
        k, v = (torch.empty(shape, dtype=self._page_dtype, device=self._device) for _ in range(2))
        return KVCache(k, v)

    def _profile(self, config: EngineConfig, loaded: LoadedModel) -> int:
        """Bytes that the largest step takes beside weights and pages. It compiles kernels, too."""
        budget = config.step_budget(self._device.type)
        num_rows = min(config.max_num_seqs, budget)
        plan = _largest_step(num_rows, budget // num_rows, self._block_size)
        # All layers write the same pages, so that this fits before the KV cache is sized
        page_count = sum(len(pages) for _, _, pages in plan.block_updates)
        kv = [self._pages(page_count, loaded)] * loaded.config.num_layers
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        before = _allocated(self._device)
        self._slots.apply(plan)
        self._sampler.add(plan.new_rows)
        logits = self._model.logits(self._forward(plan, kv))
        self._sampler.sample(logits, SamplingRows.of(plan), self._slots.state.token_pool)
        return _peak(self._device) - before


def _largest_step(num_rows: int, num_tokens: int, block_size: int) -> Plan:
    """Every row a prompt of num_tokens, in pages of its own."""
    num_pages = -(-num_tokens // block_size)
    slots = list(range(num_rows))
    return Plan(
        step=0,
        slots=slots,
        starts=[0] * num_rows,
        num_tokens=[num_tokens] * num_rows,
        samples=[True] * num_rows,
        num_decodes=0,
        new_rows=[
            NewRow(slot, [0] * num_tokens, num_tokens, SamplingParams(temperature=1.0), 0)
            for slot in slots
        ],
        block_updates=[
            (slot, 0, list(range(slot * num_pages, (slot + 1) * num_pages))) for slot in slots
        ],
        page_copies=[],
    )


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
