"""ForwardBatch: a step's inputs as the models and the attention see them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ForwardBatch(NamedTuple):
    """Rows are requests, tokens are flat: row i's tokens are query_start[i]:query_start[i+1].

    All integer tensors are on the model's device. Rows [0, num_decodes) have one token each.
    """

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slot_mapping: Tensor  # [num_tokens] int64: page * block_size + offset, where K and V go
    query_start: Tensor  # [num_rows + 1] int32
    seq_lens: Tensor  # [num_rows] int32: tokens in the KV cache after this step's write
    block_table: Tensor  # [num_rows, max_blocks] int32
    logits_indices: Tensor  # [num_samples] int64: the tokens whose logits are wanted
    num_decodes: int
    max_query_len: int
    max_seq_len: int


class KVCache(NamedTuple):
    """One layer's pages."""

    k: Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]
    v: Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]
