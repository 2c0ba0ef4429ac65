"""What a GPU's runner does once, before there is a KV cache: it compiles its kernels, and measures
what its largest step takes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from inferx_kernels.triton.compilation import compiled_together

from inferx.engine.plan import NewRow, Plan
from inferx.engine.sampling import SamplingParams
from inferx.model.gpu.attention import AttentionShape, copy_bytes
from inferx.model.gpu.limits import Limits
from inferx.model.gpu.llama import GpuLlama
from inferx.model.gpu.masked import GpuRows
from inferx.model.gpu.masked_llama import MaskedLlama
from inferx.model.gpu.steps import Steps
from inferx.model.llama import Layer, LlamaForCausalLM
from inferx.model.loading import LoadedModel
from inferx.source import ModelSource, load_error


def check_rows(max_num_seqs: int, shape: AttentionShape, source: ModelSource) -> None:
    """Raises ModelLoadError where a step could have more rows than decode attention takes."""
    if max_num_seqs > shape.most_rows:
        raise load_error(
            source,
            f"the setting max_num_seqs is {max_num_seqs}, and a step of this model on a GPU has at "
            f"most {shape.most_rows} sequences: lower it",
        )


class Rehearsal:
    """The largest step, and what stands for all other steps, on pages that all layers write: these
    fit before the KV cache is sized."""

    def __init__(
        self, steps: Steps, limits: Limits, loaded: LoadedModel, rows: GpuRows | None
    ) -> None:
        assert isinstance(loaded.model, LlamaForCausalLM)
        self._steps, self._rows = steps, rows
        self._model, self._dtype, self._device = loaded.model, loaded.dtype, loaded.device
        self._plan, self._most_copied = largest_step(limits), limits.most_copied
        num_pages = sum(len(pages) for _, _, pages in self._plan.block_updates)
        self._pages = loaded.pages(num_pages, limits.block_size)

    def compile(self) -> None:
        """All kernels of all steps, side by side: one after the other they take half a minute."""
        kinds = _one_of_each_kind(self._model)
        kv = [self._pages] * len(kinds)
        few = GpuLlama(self._model, self._dtype, [self._model.layers[index] for index in kinds])
        with compiled_together():
            self._steps.run(self._plan, few, kv)
            self._steps.launch_all("dense", few, kv)
            if self._rows is not None:
                masked = MaskedLlama(self._model, self._dtype, self._rows, kinds)
                self._steps.launch_all("sparse", masked, kv)

    def activation_bytes(self, model: GpuLlama) -> int:
        """What the largest step and the graphs take beside weights and pages. Its prompts begin;
        those with much before them copy more keys."""
        kv = [self._pages] * model.num_layers
        step = self._taken(lambda: self._steps.run(self._plan, model, kv))
        graphs = self._taken(lambda: self._steps.launch_largest_mixed(model, kv))
        return step + graphs + copy_bytes(self._most_copied, self._pages, self._dtype)

    def _taken(self, run: Callable[[], object]) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        run()
        taken = torch.cuda.max_memory_allocated(self._device) - before
        torch.cuda.empty_cache()  # so that what is free can be seen
        return taken


def _one_of_each_kind(model: LlamaForCausalLM) -> list[int]:
    """Layers, by index, that together need every kernel of the model."""
    return list({_kind(layer): index for index, layer in enumerate(model.layers)}.values())


def _kind(layer: Layer) -> tuple[object, ...]:
    linears = (layer.qkv_proj, layer.o_proj, layer.gate_up_proj, layer.down_proj)
    return layer.sliding_window, *(linear.packed.weight.dtype for linear in linears)


def largest_step(limits: Limits) -> Plan:
    """As many rows and tokens as a step may have, every row in pages of its own: one decodes (where
    there are several), the others are prompts of one length.
    """
    num_rows = min(limits.max_num_seqs, limits.budget)
    num_decodes = 1 if num_rows > 1 else 0
    longest = (limits.budget - num_decodes) // (num_rows - num_decodes)
    num_tokens = min(limits.max_model_len, longest)
    num_pages = -(-num_tokens // limits.block_size)
    slots = list(range(num_rows))
    return Plan(
        step=0,
        slots=slots,
        starts=[0] * num_rows,
        num_tokens=[1] * num_decodes + [num_tokens] * (num_rows - num_decodes),
        samples=[True] * num_rows,
        num_decodes=num_decodes,
        new_rows=[
            NewRow(slot, [0] * num_tokens, num_tokens, SamplingParams(temperature=1.0), 0)
            for slot in slots
        ],
        block_updates=[
            (slot, 0, list(range(slot * num_pages, (slot + 1) * num_pages))) for slot in slots
        ],
        page_copies=[],
    )
