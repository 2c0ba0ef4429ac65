"""Attention of a step's tokens over paged K and V: decodes, prefill chunks, or both together.

A plan is made once a step and used by every layer of the same kind. It cuts the rows into tiles
of queries, and puts tiles of similar extent into groups that are computed as one batched matrix
product: a group's K and V are gathered once for all query heads that share a KV head. Scores,
softmax and sums are fp32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inferx_kernels.invariance import TILE, is_batch_invariant

_QUERY_TILE = 128  # tokens: skips most of what the causal mask hides in a long prefill
_SHORT = 16  # tokens: tiles up to this length may share a group
_MAX_ELEMENTS = 2**22  # of a group's scores, and of its keys: 16 MiB each
_KEY_CHUNK = 256  # tokens that the batch-invariant mode adds up at a time


class _Tile(NamedTuple):
    """Neighbouring tokens of one row, by position in their sequence."""

    row: int
    base: int  # the position of the tile's first query; before `first` where tiles are aligned
    first: int  # the first position that this step computes
    last: int
    first_key: int

    @property
    def num_queries(self) -> int:
        return self.last - self.first + 1

    @property
    def num_keys(self) -> int:
        return self.last + 1 - self.first_key


class AttentionGroup(NamedTuple):
    """Tiles padded to one count of queries Q and one of keys K. B tiles, all on the device."""

    tokens: Tensor  # [B * Q] int64: which token of the batch a query is; padding repeats tokens
    computed: Tensor | None  # [<= B * Q] int64: the queries that are no padding; None: all
    keys: Tensor  # [B * num_kv_heads * K] int64: rows of the pages seen as [-1, head_dim]
    bias: Tensor | None  # [B, 1, 1, Q, K] float32: 0 where query sees key, else -inf; None: all 0
    num_tiles: int


class AttentionPlan(NamedTuple):
    """What `plan_attention` makes and `paged_attention` takes. Opaque."""

    groups: list[AttentionGroup]
    key_chunk: int | None  # batch-invariant: keys are added up in chunks of this many


def plan_attention(
    block_table: Tensor,
    seq_lens: Tensor,
    query_start: Tensor,
    *,
    block_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    sliding_window: int | None = None,
) -> AttentionPlan:
    """Plans a step's attention, causal within each row.

    block_table: [num_rows, max_blocks] int32; seq_lens: [num_rows] int32, tokens in the cache
    with this step's; query_start: [num_rows + 1] int32, row i's tokens are
    query_start[i]:query_start[i + 1] and its sequence's last ones. With `sliding_window` a token
    sees that many tokens, itself included.
    """
    starts, lens = query_start.tolist(), seq_lens.tolist()
    invariant = is_batch_invariant()
    tiles = [
        tile
        for row, seq_len in enumerate(lens)
        for tile in _tiles_of_row(
            row,
            seq_len - (starts[row + 1] - starts[row]),
            seq_len,
            TILE if invariant else min(_QUERY_TILE, _MAX_ELEMENTS // (num_heads * seq_len) or 1),
            sliding_window,
            aligned=invariant,
        )
    ]
    # Token i of a row lies at row_offset + its position in the batch.
    row_offset = [starts[row] - (n - (starts[row + 1] - starts[row])) for row, n in enumerate(lens)]
    grouped = [[tile] for tile in tiles] if invariant else _group(tiles, num_heads, head_dim)
    chunk = _KEY_CHUNK if invariant else None
    return AttentionPlan(
        [
            _plan_group(
                group, row_offset, block_table, block_size, num_kv_heads, sliding_window, chunk
            )
            for group in grouped
        ],
        chunk,
    )


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: AttentionPlan, scale: float
) -> Tensor:
    """softmax(q k^T * scale) v of every token over its sequence's pages.

    q: [num_tokens, num_heads, head_dim]; k_pages, v_pages:
    [num_blocks, block_size, num_kv_heads, head_dim], this step's K and V written already; query
    head h uses KV head h // (num_heads // num_kv_heads). Returns a new tensor like q.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = k_pages.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for group in plan.groups:
        batch = group.num_tiles
        queries = q.index_select(0, group.tokens)
        queries = queries.view(batch, -1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        # [B * KV heads, heads a KV head * Q, head_dim]: one matrix product a KV head
        queries = queries.permute(0, 2, 3, 1, 4).reshape(batch * num_kv_heads, -1, head_dim).float()
        keys, values = (
            pages.view(-1, head_dim)
            .index_select(0, group.keys)
            .view(batch * num_kv_heads, -1, head_dim)
            .float()
            for pages in (k_pages, v_pages)
        )
        attend = _attend if plan.key_chunk is None else _attend_in_chunks
        result = attend(queries, keys, values, group, scale)
        result = result.view(batch, num_kv_heads, num_heads // num_kv_heads, -1, head_dim)
        result = result.permute(0, 3, 1, 2, 4).reshape(-1, num_heads, head_dim)
        tokens = group.tokens
        if group.computed is not None:
            tokens = tokens.index_select(0, group.computed)
            result = result.index_select(0, group.computed)
        out.index_copy_(0, tokens, result.to(q.dtype))
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, group: AttentionGroup, scale: float) -> Tensor:
    """q: [B * KV heads, M, head_dim]; k, v: [B * KV heads, K, head_dim]; returns one like q."""
    scores = torch.bmm(q.mul_(scale), k.transpose(1, 2))
    if group.bias is not None:
        _add_bias(scores, group.bias)
    return torch.bmm(scores.softmax(-1), v)


def _attend_in_chunks(
    q: Tensor, k: Tensor, v: Tensor, group: AttentionGroup, scale: float
) -> Tensor:
    """`_attend`, adding up keys in chunks of one size with a running maximum (arXiv 2205.14135).

    What a token gets is independent of how many masked keys follow its own.
    """
    assert group.bias is not None
    q = q.mul_(scale)
    top = q.new_full((*q.shape[:2], 1), torch.finfo(q.dtype).min)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for start in range(0, k.shape[1], _KEY_CHUNK):
        chunk = slice(start, start + _KEY_CHUNK)
        scores = torch.bmm(q, k[:, chunk].transpose(1, 2))
        _add_bias(scores, group.bias[..., chunk])
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = scores.sub_(new_top).exp_()
        kept = top.sub_(new_top).exp_()
        total.mul_(kept).add_(weights.sum(-1, keepdim=True))
        out.mul_(kept).add_(torch.bmm(weights, v[:, chunk]))
        top = new_top
    return out.div_(total)


def _add_bias(scores: Tensor, bias: Tensor) -> None:
    """scores: [B * KV heads, heads a KV head * Q, K] += bias: [B, 1, 1, Q, K]."""
    batch, _, _, num_queries, num_keys = bias.shape
    scores.view(batch, scores.shape[0] // batch, -1, num_queries, num_keys).add_(bias)


def _tiles_of_row(
    row: int, start: int, end: int, length: int, window: int | None, *, aligned: bool
) -> list[_Tile]:
    """Cuts positions [start, end) every `length` tokens, from `start` or at multiples of it."""
    tiles = []
    base = start - start % length if aligned else start
    while base < end:
        first, last = max(base, start), min(base + length, end) - 1
        first_key = 0 if window is None else max(0, first - window + 1)
        if aligned:
            first_key -= first_key % _KEY_CHUNK
        tiles.append(_Tile(row, base, first, last, first_key))
        base += length
    return tiles


def _group(tiles: list[_Tile], num_heads: int, head_dim: int) -> list[list[_Tile]]:
    """Short tiles with similar numbers of keys together; padding stays below about a half."""
    groups: list[list[_Tile]] = []
    room = 0  # for further tiles of the group's shape
    for tile in sorted(tiles, key=lambda tile: (_queries_class(tile), -tile.num_keys)):
        biggest = groups[-1][0] if groups else None
        if (
            biggest is not None
            and room > 0
            and _queries_class(tile) == _queries_class(biggest) <= _SHORT
            and biggest.num_keys <= 2 * tile.num_keys + 16 * _SHORT
        ):
            groups[-1].append(tile)
            room -= 1
        else:
            groups.append([tile])
            most = num_heads * max(_queries_class(tile), head_dim) * tile.num_keys
            room = _MAX_ELEMENTS // most - 1
    return groups


def _queries_class(tile: _Tile) -> int:
    """The number of queries, rounded up to a power of two."""
    return 1 << (tile.num_queries - 1).bit_length()


def _plan_group(
    tiles: list[_Tile],
    row_offset: list[int],
    block_table: Tensor,
    block_size: int,
    num_kv_heads: int,
    window: int | None,
    chunk: int | None,
) -> AttentionGroup:
    device = block_table.device
    rows, base, first, last, first_key = (
        torch.tensor(column, device=device).unsqueeze(1) for column in zip(*tiles, strict=True)
    )
    offset = torch.tensor([row_offset[tile.row] for tile in tiles], device=device).unsqueeze(1)
    num_queries = TILE if chunk else max(tile.num_queries for tile in tiles)
    num_keys = max(tile.num_keys for tile in tiles)
    if chunk:
        num_keys = -(-num_keys // chunk) * chunk

    places = base + torch.arange(num_queries, device=device)
    queries = torch.minimum(torch.maximum(places, first), last)  # positions, [B, Q]
    keys = first_key + torch.arange(num_keys, device=device)  # positions, [B, K]
    # Padding reads the row's own last key, never a page that may hold another's.
    stored = torch.minimum(keys, last)
    pages = block_table[rows, stored // block_size].long()
    slots = pages * block_size + stored % block_size
    heads = torch.arange(num_kv_heads, device=device).unsqueeze(1)

    bias = None
    if chunk or num_queries > 1 or any(tile.num_keys < num_keys for tile in tiles):
        query, key = queries.unsqueeze(2), keys.unsqueeze(1)
        seen = key <= query
        if window is not None:
            seen &= key > query - window
        bias = torch.zeros(seen.shape, device=device).masked_fill_(~seen, float("-inf"))
        bias = bias.unsqueeze(1).unsqueeze(1)
    is_whole = all(tile.num_queries == num_queries for tile in tiles)
    return AttentionGroup(
        tokens=(offset + queries).view(-1),
        computed=None if is_whole else (places == queries).view(-1).nonzero().squeeze(1),
        keys=(slots.unsqueeze(1) * num_kv_heads + heads).view(-1),
        bias=bias,
        num_tiles=len(tiles),
    )
