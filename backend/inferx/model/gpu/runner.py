"""GpuRunner: executes plans on a Llama-like model without ever waiting for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from inferx_kernels import ops
from inferx_kernels.triton.compilation import compiled_together
from inferx_kernels.triton.inputs import store_tokens
from torch import Tensor

from inferx.config import EngineConfig
from inferx.engine.plan import Plan, StepResult
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import AttentionShape
from inferx.model.gpu.capturing import Capturing
from inferx.model.gpu.graphs import DecodeGraphs
from inferx.model.gpu.llama import GpuLlama
from inferx.model.gpu.masked import GpuRows
from inferx.model.gpu.masked_llama import MaskedLlama
from inferx.model.gpu.mixed import MixedSteps
from inferx.model.gpu.mixed_graphs import MixedGraphs
from inferx.model.gpu.sampler import GpuSampler
from inferx.model.gpu.slots import Slots
from inferx.model.gpu.startup import check_rows, largest_step, one_of_each_kind
from inferx.model.gpu.stopwatch import StopWatch
from inferx.model.input_batch import SamplingRows
from inferx.model.llama import LlamaForCausalLM
from inferx.model.loading import LoadedModel
from inferx.model.placement import size_kv_cache
from inferx.model.sampler import RowLogprobs, Sampled
from inferx.model.upload import Download, upload, upload_int32
from inferx.observe.stages import Stages
from inferx.source import load_error
from inferx.sparse.timing import TimeStep, decode_plan, measure_costs


class _Launched(NamedTuple):
    """A step whose results are on their way."""

    download: Download  # the tokens, and the tensors of `logprobs`
    logprobs: RowLogprobs | None
    watch: StopWatch | None = None  # of steps whose path may be chosen

    def result(self) -> StepResult:
        token_ids, *tensors = self.download.wait()
        logprobs = self.logprobs
        if logprobs is not None:
            logprobs = logprobs._replace(tensors=ops.LogprobsTensors(*tensors))
        entries = Sampled(token_ids, logprobs).logprobs
        return StepResult(
            [[token] for token in token_ids.tolist()],
            [None if entry is None else [entry] for entry in entries],
            seconds=None if self.watch is None else self.watch.seconds,
        )


class GpuRunner:
    """The Runner protocol. Steps are launched in order on one stream, from the caller's thread.

    On a CPU, where Triton's interpreter runs the kernels, it does the same without graphs: so that
    its tests run anywhere.
    """

    def __init__(self, config: EngineConfig, loaded: LoadedModel, stages: Stages) -> None:
        """Raises ModelLoadError."""
        self._device = loaded.device
        self._stream = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream()
            self._stream.wait_stream(torch.cuda.current_stream())  # which loaded the weights
        self._launched: deque[_Launched] = deque()
        with self.computing():
            self._build(config, loaded, stages)

    def _build(self, config: EngineConfig, loaded: LoadedModel, stages: Stages) -> None:
        model = loaded.model
        assert isinstance(model, LlamaForCausalLM)
        self._model = GpuLlama(model, loaded.dtype)
        self.sparse_rows = _rows(loaded, model)
        self._shape = AttentionShape.of(loaded.config)
        check_rows(config.max_num_seqs, self._shape, loaded.source)
        self._block_size = config.page_size(self._device.type)
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
            block_size=self._block_size,
            rotation=model.rotation(torch.arange(limit, device=self._device)),
        )
        budget = config.step_budget(self._device.type)
        capturing = Capturing(self._device)
        self._mixed_graphs = MixedGraphs(
            self._slots,
            self._shape,
            capturing,
            max_num_seqs=config.max_num_seqs,
            budget=budget,
            block_size=self._block_size,
            page_dtype=loaded.kv_dtype,
            hidden_size=loaded.config.hidden_size,
            dtype=loaded.dtype,
        )
        self._mixed = MixedSteps(
            self._slots, self._shape, self._mixed_graphs, block_size=self._block_size
        )
        self._graphs = DecodeGraphs(
            self._slots,
            self._sampler,
            self._shape,
            capturing,
            max_num_seqs=config.max_num_seqs,
            vocab_size=loaded.config.vocab_size,
            block_size=self._block_size,
        )
        plan = largest_step(
            config.max_num_seqs, budget, max_model_len=limit, block_size=self._block_size
        )
        # All layers write the same pages, so that they fit before the KV cache is sized
        pages = self._pages(sum(len(pages) for _, _, pages in plan.block_updates), loaded)
        activation_bytes = 0
        if self._stream is not None:
            with stages("compile"):
                self._compile(loaded, model, plan, pages)
            with stages("profile"):
                activation_bytes = self._profile(plan, [pages] * loaded.config.num_layers)
        del pages
        with stages("kv_cache"):
            size = size_kv_cache(
                config,
                loaded.source,
                loaded.config,
                dtype=loaded.kv_dtype,
                device=self._device,
                weight_bytes=loaded.weight_bytes
                + (self.sparse_rows.num_bytes if self.sparse_rows else 0),
                activation_bytes=activation_bytes,
            )
            self._kv = [
                self._pages(size.num_blocks, loaded) for _ in range(loaded.config.num_layers)
            ]
        with stages("graphs"):
            self._mixed_graphs.capture(self._model, self._kv)
            self._graphs.capture(self._model, self._kv)
        sparse_path = None
        if self.sparse_rows is not None:
            with stages("sparse_path"):
                masked = MaskedLlama(model, loaded.dtype, self.sparse_rows)
                self._graphs.capture_sparse(masked, self._kv)
                costs = measure_costs(
                    self.timing(size.num_blocks, loaded.config.vocab_size),
                    self.sparse_rows,
                    config.max_num_seqs,
                )
                sparse_path = self.sparse_rows.described(costs)
        info = loaded.info(config, size, stages)
        self.info = msgspec.structs.replace(info, sparse_path=sparse_path)

    def launch(self, plan: Plan) -> None:
        with self.computing():
            self._launched.append(self._execute(plan))

    def collect(self) -> StepResult:
        result = self._launched.popleft().result()
        return (
            result
            if self.sparse_rows is None
            else result._replace(probes=self.sparse_rows.probe.drain())
        )

    def close(self) -> None:
        """Waits for the device."""
        if self._stream is not None:
            self._stream.synchronize()
        self._launched.clear()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What is launched within goes to the runner's stream."""
        on_stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with torch.inference_mode(), on_stream:
            yield

    def _execute(self, plan: Plan) -> _Launched:
        if self.sparse_rows is None:
            return self._run(plan)
        watch = StopWatch(self._device)
        if plan.sparsity:
            self.sparse_rows.select(plan.sparsity)
        launched = self._run(plan)
        watch.stop()
        if plan.sparsity:
            self.sparse_rows.probe.push()
            self.sparse_rows.probe.pushed(plan.step, plan.sparsity, len(plan.slots))
        return launched._replace(watch=watch)

    def timing(self, num_blocks: int, vocab_size: int) -> TimeStep:
        """Runs decode steps of requests that nobody has, on either path, with whatever thresholds
        there are: only before the first request."""

        def time_step(tokens: int, is_masked: bool) -> float:
            plan = decode_plan(tokens, num_blocks, vocab_size, sparsity=float(is_masked))
            self._run(plan)  # keeps the device busy while the next one is prepared
            watch = StopWatch(self._device)
            launched = self._run(plan)
            watch.stop()
            launched.result()
            return watch.seconds

        return time_step

    def _run(self, plan: Plan) -> _Launched:
        self._slots.apply(plan)
        self._copy_pages(plan.page_copies)
        rows = SamplingRows.of(plan)
        if plan.num_decodes == len(plan.slots):
            logits = self._graphs.forward(plan)
            self._sampler.add(plan.new_rows)
            if not self._sampler.needs_reading(rows.slots):
                return _Launched(Download([self._graphs.sample(plan)]), None)
        else:
            hidden = self._mixed.forward(self._model, plan, self._kv)
            self._sampler.add(plan.new_rows)
            if not len(rows.slots):  # prompts that go on in the next step
                return _Launched(Download([hidden.new_empty(0, dtype=torch.int64)]), None)
            logits = self._model.logits(hidden)
        sampled = self._sampler.sample(logits, rows, self._slots.state.token_pool)
        self._store(rows, sampled.token_ids)
        tensors = [] if sampled.row_logprobs is None else list(sampled.row_logprobs.tensors)
        return _Launched(Download([sampled.token_ids, *tensors]), sampled.row_logprobs)

    def _store(self, rows: SamplingRows, token_ids: Tensor) -> None:
        slots, positions = (upload_int32(values, self._device) for values in rows)
        store_tokens(self._slots.state.token_pool, slots, positions, token_ids)

    def _copy_pages(self, copies: list[tuple[int, int]]) -> None:
        if copies:
            sources, targets = upload(np.array(copies, np.int64).T.copy(), self._device)
            ops.copy_pages((pages for cache in self._kv for pages in cache), sources, targets)

    def _pages(self, num_blocks: int, loaded: LoadedModel) -> KVCache:
        heads = loaded.config.num_kv_heads, loaded.config.head_dim
        shape = (num_blocks, self._block_size, *heads)
        k, v = (torch.empty(shape, dtype=loaded.kv_dtype, device=self._device) for _ in range(2))
        return KVCache(k, v)

    def _compile(
        self, loaded: LoadedModel, model: LlamaForCausalLM, plan: Plan, pages: KVCache
    ) -> None:
        """All kernels of all steps, side by side: one after the other they take half a minute."""
        kinds = one_of_each_kind(model)
        kv = [pages] * len(kinds)
        few = GpuLlama(model, loaded.dtype, [model.layers[index] for index in kinds])
        with compiled_together():
            self._run_once(few, plan, kv)
            self._mixed_graphs.launch(few, kv)
            self._graphs.launch_all(few, kv)
            if self.sparse_rows is not None:
                masked = MaskedLlama(model, loaded.dtype, self.sparse_rows, kinds)
                self._graphs.launch_sparse(masked, kv)

    def _profile(self, plan: Plan, kv: list[KVCache]) -> int:
        """Bytes that the largest step and the graphs take beside weights and pages."""
        largest = [self._mixed_graphs.largest]
        return self._taken(lambda: self._run_once(self._model, plan, kv)) + self._taken(
            lambda: self._mixed_graphs.launch(self._model, kv, largest)
        )

    def _taken(self, run: Callable[[], object]) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        run()
        taken = torch.cuda.max_memory_allocated(self._device) - before
        torch.cuda.empty_cache()  # so that what is free can be seen
        return taken

    def _run_once(self, model: GpuLlama, plan: Plan, kv: list[KVCache]) -> None:
        self._slots.apply(plan)
        self._sampler.add(plan.new_rows)
        rows = SamplingRows.of(plan)
        logits = model.logits(self._mixed.forward(model, plan, kv))
        sampled = self._sampler.sample(logits, rows, self._slots.state.token_pool)
        self._store(rows, sampled.token_ids)


def _rows(loaded: LoadedModel, model: LlamaForCausalLM) -> GpuRows | None:
    if not loaded.calibrations:
        return None
    try:
        return GpuRows(loaded.calibrations, model, loaded.device)
    except ValueError as error:
        raise load_error(loaded.source, f"it cannot be served sparsely: {error}") from None
