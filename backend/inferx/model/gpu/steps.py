"""Steps: what the device is given for a plan, from the plan's differences to the new tokens."""

from __future__ import annotations

import torch
from inferx_kernels.triton.inputs import store_tokens
from torch import Tensor

from inferx.engine.plan import Plan
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import AttentionShape
from inferx.model.gpu.capturing import Capturing
from inferx.model.gpu.graphs import DecodeGraphs, PathName
from inferx.model.gpu.launched import Launched
from inferx.model.gpu.limits import Limits
from inferx.model.gpu.llama import GpuLlama
from inferx.model.gpu.mixed import MixedSteps
from inferx.model.gpu.mixed_graphs import MixedGraphs
from inferx.model.gpu.sampler import GpuSampler
from inferx.model.gpu.slots import Slots
from inferx.model.input_batch import SamplingRows, copy_pages
from inferx.model.llama import LlamaForCausalLM
from inferx.model.loading import LoadedModel
from inferx.model.upload import Download, upload_int32


class Steps:
    """Owns what steps share beside weights and KV pages: the requests' slots, the settings of
    their sampling, and the graphs."""

    def __init__(self, limits: Limits, loaded: LoadedModel) -> None:
        """`capture` makes the graphs."""
        assert isinstance(loaded.model, LlamaForCausalLM)
        self._device = loaded.device
        shape, capturing = AttentionShape.of(loaded.config), Capturing(self._device)
        self._sampler = GpuSampler(
            limits.max_num_seqs,
            vocab_size=loaded.config.vocab_size,
            eos_token_ids=loaded.config.eos_token_ids,
            device=self._device,
        )
        self._slots = Slots(
            limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            block_size=limits.block_size,
            rotation=loaded.model.rotation(torch.arange(limits.max_model_len, device=self._device)),
        )
        self._mixed_graphs = MixedGraphs(
            self._slots,
            shape,
            capturing,
            limits,
            page_dtype=loaded.kv_dtype,
            hidden_size=loaded.config.hidden_size,
            dtype=loaded.dtype,
        )
        self._mixed = MixedSteps(self._slots, shape, self._mixed_graphs, limits)
        self._decodes = DecodeGraphs(
            self._slots,
            self._sampler,
            shape,
            capturing,
            limits,
            vocab_size=loaded.config.vocab_size,
        )

    def capture(self, path: PathName, model: GpuLlama, kv: list[KVCache]) -> None:
        """The graphs of a path's steps, of which the sparse ones have no prompts."""
        if path == "dense":
            self._mixed_graphs.capture(model, kv)
        self._decodes.capture(path, model, kv)

    def launch_all(self, path: PathName, model: GpuLlama, kv: list[KVCache]) -> None:
        """The same steps, of rows that nobody has, without graphs."""
        if path == "dense":
            self._mixed_graphs.launch(model, kv)
        self._decodes.launch(path, model, kv)

    def launch_largest_mixed(self, model: GpuLlama, kv: list[KVCache]) -> None:
        """Of them, the one that takes most memory."""
        self._mixed_graphs.launch(model, kv, [self._mixed_graphs.largest])

    def run(self, plan: Plan, model: GpuLlama, kv: list[KVCache]) -> Launched:
        """Steps of decodes alone replay a graph, of the model and the pages that it was captured
        with; others take these."""
        self._slots.apply(plan)
        copy_pages(kv, plan.page_copies)
        rows = SamplingRows.of(plan)
        if plan.num_decodes == len(plan.slots):
            logits = self._decodes.forward(plan)
            self._sampler.add(plan.new_rows)
            if not self._sampler.needs_reading(rows.slots):
                return Launched(Download([self._decodes.sample(plan)]), None)
        else:
            hidden = self._mixed.forward(model, plan, kv)
            self._sampler.add(plan.new_rows)
            if not len(rows.slots):  # prompts that go on in the next step
                return Launched(Download([hidden.new_empty(0, dtype=torch.int64)]), None)
            logits = model.logits(hidden)
        return self._sample(logits, rows)

    def _sample(self, logits: Tensor, rows: SamplingRows) -> Launched:
        token_pool = self._slots.state.token_pool
        sampled = self._sampler.sample(logits, rows, token_pool)
        slots, positions = (upload_int32(values, self._device) for values in rows)
        store_tokens(token_pool, slots, positions, sampled.token_ids)
        tensors = [] if sampled.row_logprobs is None else list(sampled.row_logprobs.tensors)
        return Launched(Download([sampled.token_ids, *tensors]), sampled.row_logprobs)
