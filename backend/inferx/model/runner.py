"""ModelRunner: executes plans on any model, with the operations of any device."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter

import msgspec
import torch
from inferx_kernels import ops
from torch import Tensor

from inferx.config import EngineConfig
from inferx.engine.plan import Plan, StepResult, TokenLogprobs
from inferx.model.input_batch import InputBatch, SamplingRows, copy_pages
from inferx.model.llama import LlamaForCausalLM
from inferx.model.loading import LoadedModel
from inferx.model.placement import size_kv_cache
from inferx.model.sampler import Sampler
from inferx.observe.stages import Stages
from inferx.paths.info import SparsePath
from inferx.sparse.serving import MaskedInputs
from inferx.sparse.timing import decode_plan, measure_costs

_MAX_LOGITS = 2**23  # 32 MiB of float32 at a time; the sampler takes a few times as much


class ModelRunner:
    """The Runner protocol. One thread executes the plans in their order.

    torch releases the GIL while it computes, so the thread that launches goes on meanwhile.
    What fails in a plan is raised by its `collect`.
    """

    def __init__(self, config: EngineConfig, loaded: LoadedModel, stages: Stages) -> None:
        """Raises ModelLoadError."""
        self._model = loaded.model
        self._device = device = loaded.device
        ops.use_batch_invariant(config.batch_invariant)
        with stages("kv_cache"):
            size = size_kv_cache(
                config,
                loaded.source,
                loaded.config,
                dtype=loaded.kv_dtype,
                device=device,
                weight_bytes=loaded.weight_bytes,
            )
            self._kv = [
                loaded.pages(size.num_blocks, config.page_size(device.type))
                for _ in range(loaded.config.num_layers)
            ]
            self._batch = InputBatch(
                config.max_num_seqs,
                max_model_len=size.max_model_len,
                block_size=config.page_size(device.type),
                device=device,
            )
            self._sampler = Sampler(
                config.max_num_seqs,
                vocab_size=loaded.config.vocab_size,
                eos_token_ids=loaded.config.eos_token_ids,
                device=device,
            )
        self._rows_at_once = max(1, _MAX_LOGITS // loaded.config.vocab_size)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inferx-runner")
        self._launched: deque[Future[StepResult]] = deque()
        self._masked: MaskedInputs | None = None
        with stages("warm_up"):
            self.launch(_WARM_UP)
            self.collect()
        sparse_path = None
        if loaded.calibrations:
            with stages("sparse_path"):
                sparse_path = self._with_sparse_path(loaded, config.max_num_seqs, size.num_blocks)
        info = loaded.info(config, size, stages)
        self.info = msgspec.structs.replace(info, sparse_path=sparse_path)

    def launch(self, plan: Plan) -> None:
        self._launched.append(self._thread.submit(self._execute, plan))

    def collect(self) -> StepResult:
        return self._launched.popleft().result()

    def close(self) -> None:
        """Waits for the plan that runs; those behind it are dropped."""
        self._thread.shutdown(cancel_futures=True)

    def _with_sparse_path(
        self, loaded: LoadedModel, max_num_seqs: int, num_blocks: int
    ) -> SparsePath:
        assert isinstance(self._model, LlamaForCausalLM)
        masked = MaskedInputs(loaded.calibrations, self._model, self._device)

        def time_step(tokens: int, is_masked: bool) -> float:
            plan = decode_plan(tokens, num_blocks, loaded.config.vocab_size)
            used = masked if is_masked else None
            return self._thread.submit(self._timed, plan, used).result()[1]

        costs = measure_costs(time_step, masked, max_num_seqs)
        self._masked = masked
        return masked.described(costs)

    def _execute(self, plan: Plan) -> StepResult:
        masked = self._masked
        if masked is None:
            return self._timed(plan, None)[0]
        copies = masked.probe.take()
        if plan.sparsity:
            masked.select(plan.sparsity)
        result, seconds = self._timed(plan, masked if plan.sparsity else None)
        if plan.sparsity:
            masked.probe.push(plan.step, plan.sparsity, len(plan.slots))
        probes = [probe for copy in copies for probe in copy.read()]
        return result._replace(seconds=seconds, probes=probes)

    @torch.inference_mode()
    def _timed(self, plan: Plan, masked: MaskedInputs | None) -> tuple[StepResult, float]:
        """What the plan brings, and the seconds that it took: its tokens are waited for."""
        begin = perf_counter()
        result = self._run(plan, masked)
        return result, perf_counter() - begin

    def _run(self, plan: Plan, masked: MaskedInputs | None) -> StepResult:
        for row in plan.new_rows:
            self._batch.add(row)
        self._sampler.add(plan.new_rows)
        self._batch.update_blocks(plan.block_updates)
        copy_pages(self._kv, plan.page_copies)
        batch = self._batch.forward_batch(plan)
        if masked is None:
            hidden = self._model.forward(batch, self._kv)
        else:
            assert isinstance(self._model, LlamaForCausalLM)
            hidden = self._model.forward(batch, self._kv, masked)
            masked.record()
        rows = SamplingRows.of(plan)
        return self._sample(hidden[batch.logits_indices], rows)

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


# A token of slot 0 into page 0: nobody has them yet.
_WARM_UP = Plan(
    step=0, slots=[0], starts=[0], num_tokens=[1], samples=[False], num_decodes=0,
    new_rows=[], block_updates=[], page_copies=[],
)  # fmt: skip
