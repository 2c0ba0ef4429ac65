"""Attention of a step: its decode rows by one kernel, the rows of its prompts by another."""

from __future__ import annotations

from typing import NamedTuple

import torch
from inferx_kernels.triton.attention import (
    DecodePlan,
    allocate_decode_plan,
    decode_attention,
    fused_decode_attention,
    plan_decode,
    prefill_attention,
)
from inferx_kernels.triton.inputs import StepInputs
from inferx_kernels.triton.rows import LateScales, rope_write
from inferx_kernels.triton.widen import WidenPlan, plan_widen, widen_pages
from inferx_kernels.triton.workspace import COUNTERS, PART_FLOATS
from torch import Tensor

from inferx.model.batch import KVCache
from inferx.model.config import ModelConfig

_WIDEN_FROM = 256  # tokens of prompts in a step: then e4m3 keys are read often enough


class AttentionShape(NamedTuple):
    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: frozenset[int | None]  # of the layers

    @classmethod
    def of(cls, config: ModelConfig) -> AttentionShape:
        sliding = config.layer_sliding or (True,) * config.num_layers
        windows = {config.sliding_window if slides else None for slides in sliding}
        return cls(config.num_heads, config.num_kv_heads, config.head_dim, frozenset(windows))

    @property
    def most_rows(self) -> int:
        """Decode rows of a step that the kernels' scratch memory has room for."""
        return min(PART_FLOATS // self._part_floats, COUNTERS // self.num_kv_heads)

    @property
    def _part_floats(self) -> int:
        """Of a chunk's partial result."""
        return self.num_heads * (self.head_dim + 2)

    def decode_plans(
        self, num_rows: int, max_tokens: int, chunk: int, device: torch.device
    ) -> dict[int | None, DecodePlan]:
        """Work lists for steps of up to num_rows rows (most_rows or fewer) with up to max_tokens
        keys together, in chunks of so many tokens, or of more if the scratch memory asks for it."""
        while (num_rows + max_tokens // chunk) * self._part_floats > PART_FLOATS:
            chunk *= 2
        return {
            window: allocate_decode_plan(
                num_rows, max_tokens, chunk=chunk, window=window, device=device
            )
            for window in self.windows
        }


def most_keys(pages: KVCache, num_rows: int, max_model_len: int) -> int:
    """Keys that so many rows may have together: each as many as there are pages for, since rows
    share the pages of a prefix that they have in common."""
    num_blocks, block_size = pages.k.shape[:2]
    return num_rows * min(num_blocks * block_size, max_model_len)


class PromptRows(NamedTuple):
    """A step's rows behind its decodes."""

    query_start: Tensor  # [num_rows + 1] int32, into the step's tokens
    seq_lens: Tensor  # [num_rows] int32
    block_table: Tensor  # [num_rows, max_blocks] int32
    widened: WidenPlan | None


def widens(num_tokens: int, dtype: torch.dtype) -> bool:
    """Whether a step with so many tokens of prompts copies its pages of this type."""
    return dtype == torch.float8_e4m3fn and num_tokens >= _WIDEN_FROM


def copy_bytes(num_keys: int, pages: KVCache, dtype: torch.dtype) -> int:
    """What such a copy of a layer's pages takes."""
    if not widens(_WIDEN_FROM, pages.k.dtype):
        return 0
    return 2 * num_keys * pages.k[0, 0].numel() * dtype.itemsize


def prompt_rows(
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    *,
    num_tokens: int,
    num_keys: int,
    max_seq_len: int,
    most_copied: int,
    dtype: torch.dtype,
) -> PromptRows:
    """num_tokens: of the prompts in this step; num_keys, max_seq_len: the sum and the largest of
    seq_lens, or more; most_copied: keys whose copy there is memory for; dtype: of the pages."""
    widened = None
    if widens(num_tokens, dtype) and num_keys <= most_copied:
        widened = plan_widen(seq_lens, num_tokens=num_keys, max_seq_len=max_seq_len)
    return PromptRows(query_start, seq_lens, block_table, widened)


class StepAttention(NamedTuple):
    """What all layers of a step share."""

    inputs: StepInputs
    num_decodes: int  # rows of one token, first
    plans: dict[int | None, DecodePlan]  # by sliding window, of the decode rows
    prompts: PromptRows | None

    def plan(self) -> None:
        """Fills the work lists; outside of the chain of dependent launches."""
        for plan in self.plans.values() if self.num_decodes else ():
            plan_decode(plan, self.inputs.seq_lens[: self.num_decodes])

    def decode(
        self,
        qkv: Tensor,
        kv: KVCache,
        window: int | None,
        norm_weight: Tensor | None,
        eps: float,
    ) -> Tensor:
        """Of a step of decode rows alone: rotates, writes K and V, and attends.

        qkv: [num_rows, (num_heads + 2 num_kv_heads) * head_dim], scaled. Returns
        [num_rows, num_heads * head_dim].
        """
        head_dim = kv.k.shape[3]
        return fused_decode_attention(
            qkv.view(len(qkv), -1, head_dim),
            self.inputs.rotation,
            kv.k,
            kv.v,
            self.inputs.block_table,
            self.plans[window],
            head_dim**-0.5,
            norm_weight=norm_weight,
            eps=eps,
        ).flatten(1)

    def mixed(
        self,
        qkv: Tensor,
        late: LateScales | None,
        kv: KVCache,
        window: int | None,
        norm_weight: Tensor | None,
        eps: float,
    ) -> Tensor:
        """The same for any step, of a product whose scales may come late."""
        head_dim = kv.k.shape[3]
        q = rope_write(
            qkv.view(len(qkv), -1, head_dim),
            self.inputs.rotation,
            kv.k,
            kv.v,
            self.inputs.slot_mapping,
            norm_weight=norm_weight,
            eps=eps,
            late=late,
        )
        out = torch.empty_like(q)
        decodes = self.num_decodes
        if decodes:
            decode_attention(
                q[:decodes],
                kv.k,
                kv.v,
                self.inputs.block_table,
                self.plans[window],
                head_dim**-0.5,
                out=out[:decodes],
            )
        if self.prompts is not None:
            self._prompts(q, kv, window, out, self.prompts)
        return out.flatten(1)

    def _prompts(
        self, q: Tensor, kv: KVCache, window: int | None, out: Tensor, rows: PromptRows
    ) -> None:
        k, v, block_table = kv.k, kv.v, rows.block_table
        if rows.widened is not None:
            k, v, block_table = widen_pages(k, v, block_table, rows.seq_lens, rows.widened, q.dtype)
        prefill_attention(
            q,
            k,
            v,
            block_table,
            rows.seq_lens,
            rows.query_start,
            q.shape[2] ** -0.5,
            out=out,
            sliding_window=window,
        )
