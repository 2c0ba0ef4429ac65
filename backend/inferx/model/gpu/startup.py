"""What a GPU's runner does once, before its first step."""

from __future__ import annotations

from inferx.engine.plan import NewRow, Plan
from inferx.engine.sampling import SamplingParams
from inferx.model.gpu.attention import AttentionShape
from inferx.model.llama import Layer, LlamaForCausalLM
from inferx.source import ModelSource, load_error


def check_rows(max_num_seqs: int, shape: AttentionShape, source: ModelSource) -> None:
    """Raises ModelLoadError where a step could have more rows than decode attention takes."""
    if max_num_seqs > shape.most_rows:
        raise load_error(
            source,
            f"the setting max_num_seqs is {max_num_seqs}, and a step of this model on a GPU has at "
            f"most {shape.most_rows} sequences: lower it",
        )


def one_of_each_kind(model: LlamaForCausalLM) -> list[int]:
    """Layers, by index, that together need every kernel of the model."""
    return list({_kind(layer): index for index, layer in enumerate(model.layers)}.values())


def _kind(layer: Layer) -> tuple[object, ...]:
    linears = (layer.qkv_proj, layer.o_proj, layer.gate_up_proj, layer.down_proj)
    return layer.sliding_window, *(linear.packed.weight.dtype for linear in linears)


def largest_step(max_num_seqs: int, budget: int, *, max_model_len: int, block_size: int) -> Plan:
    """As many rows and tokens as a step may have, every row in pages of its own: one decodes (where
    there are several), the others are prompts of one length.
    """
    num_rows = min(max_num_seqs, budget)
    num_decodes = 1 if num_rows > 1 else 0
    num_tokens = min(max_model_len, (budget - num_decodes) // (num_rows - num_decodes))
    num_pages = -(-num_tokens // block_size)
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
