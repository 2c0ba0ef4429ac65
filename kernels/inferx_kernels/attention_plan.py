"""Planning a step's attention: which queries and keys are computed together.

Rows are cut into tiles of queries, and tiles of similar extent are put into groups, each of them
one batched matrix product. Made once a step, for every layer with the same sliding window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from inferx_kernels.invariance import TILE, is_batch_invariant

KEY_CHUNK = 256  # tokens that the batch-invariant mode adds up at a time
_QUERY_TILE = 128  # tokens: skips most of what the causal mask hides in a long prefill
_SHORT = 32  # tokens: tiles up to this length may share a group
_SPARE_KEYS = 256  # that a group's shortest row may be padded by, besides its own number
_MAX_ELEMENTS = 2**22  # of a group's scores, and of its keys: 16 MiB each


class AttentionGroup(NamedTuple):
    """B tiles, padded to Q queries and K keys each. Tensors are on the device."""

    num_tiles: int
    # [B * Q] int64: which token of the batch a query is; padding repeats one. None: all, in order
    tokens: Tensor | None
    computed: Tensor | None  # [<= B * Q] int64: the queries that are no padding. None: all
    keys: Tensor  # [B * num_kv_heads * K] int64: rows of the pages seen as [-1, head_dim]
    bias: Tensor | None  # [B, 1, 1, Q, K] float32: 0 where query sees key, else -inf. None: all 0


class AttentionPlan(NamedTuple):
    """What `plan_attention` makes and `paged_attention` takes. Opaque."""

    groups: list[AttentionGroup]
    in_chunks: bool  # batch-invariant: keys are added up KEY_CHUNK at a time


class _Tile(NamedTuple):
    """Neighbouring tokens of one row, by position in their sequence."""

    row: int
    base: int  # of the tile's first place; before `first` where tiles are aligned
    first: int  # the first position that this step computes
    last: int
    first_key: int
    token: int  # the batch's index of the token at `first`

    @property
    def num_queries(self) -> int:
        return self.last - self.first + 1

    @property
    def num_keys(self) -> int:
        return self.last - self.first_key + 1


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
    with this step's; query_start: [num_rows + 1] int32: row i's tokens are
    query_start[i]:query_start[i + 1], the last ones of its sequence. With `sliding_window` a
    token sees that many tokens, itself included.
    """
    invariant = is_batch_invariant()
    longest_tile = TILE if invariant else _QUERY_TILE
    tiles: list[_Tile] = []
    starts = query_start.tolist()
    for row, seq_len in enumerate(seq_lens.tolist()):
        length = max(1, min(longest_tile, _MAX_ELEMENTS // (num_heads * seq_len)))
        length = TILE if invariant else length
        tiles += _tiles_of_row(
            row, starts[row], starts[row + 1], seq_len, length, sliding_window, aligned=invariant
        )
    if invariant:
        groups = [[tile] for tile in tiles]
    else:
        groups = _group(tiles, most=_MAX_ELEMENTS // num_heads, head_dim=head_dim)
    planner = _GroupPlanner(
        block_table, block_size, num_kv_heads, sliding_window, invariant, starts[-1]
    )
    return AttentionPlan([planner.plan(group) for group in groups], invariant)


def _tiles_of_row(
    row: int, start: int, end: int, seq_len: int, length: int, window: int | None, *, aligned: bool
) -> Iterator[_Tile]:
    """Cuts tokens [start, end) of the batch, the last ones of a sequence, every `length` tokens.

    Aligned tiles begin at positions that are multiples of `length`, whatever the step computes.
    """
    start_position = seq_len - (end - start)
    base = start_position - start_position % length if aligned else start_position
    while base < seq_len:
        first, last = max(base, start_position), min(base + length, seq_len) - 1
        first_key = 0 if window is None else max(0, first - window + 1)
        if aligned:
            first_key -= first_key % KEY_CHUNK
        yield _Tile(row, base, first, last, first_key, start + first - start_position)
        base += length


def _group(tiles: list[_Tile], *, most: int, head_dim: int) -> list[list[_Tile]]:
    """Short tiles of similar extent together, as far as scores and keys stay within bounds."""
    groups: list[list[_Tile]] = []
    room = 0  # for further tiles of the last group's extent
    for tile in sorted(tiles, key=lambda tile: (_class(tile), -tile.num_keys)):
        biggest = groups[-1][0] if groups else tile
        if (
            room > 0
            and _class(tile) == _class(biggest) <= _SHORT
            and biggest.num_keys <= 2 * tile.num_keys + _SPARE_KEYS
        ):
            groups[-1].append(tile)
            room -= 1
        else:
            groups.append([tile])
            room = most // (max(_class(tile), head_dim) * tile.num_keys) - 1
    return [sorted(group) for group in groups]


def _class(tile: _Tile) -> int:
    """The number of queries, rounded up to a power of two."""
    return 1 << (tile.num_queries - 1).bit_length()


class _GroupPlanner(NamedTuple):
    block_table: Tensor
    block_size: int
    num_kv_heads: int
    window: int | None
    invariant: bool
    num_tokens: int  # in the batch

    def plan(self, tiles: list[_Tile]) -> AttentionGroup:
        device = self.block_table.device
        row, base, first, last, first_key, token = (
            torch.tensor(column, device=device).unsqueeze(1) for column in zip(*tiles, strict=True)
        )
        num_queries = TILE if self.invariant else max(tile.num_queries for tile in tiles)
        num_keys = max(tile.num_keys for tile in tiles)
        if self.invariant:
            num_keys = -(-num_keys // KEY_CHUNK) * KEY_CHUNK
        is_even = all(
            (tile.num_queries, tile.num_keys) == (num_queries, num_keys) for tile in tiles
        )
        is_whole = all(tile.num_queries == num_queries for tile in tiles)

        places = base + torch.arange(num_queries, device=device)
        queries = torch.minimum(torch.maximum(places, first), last)  # positions, [B, Q]
        keys = first_key + torch.arange(num_keys, device=device)  # positions, [B, K]
        tokens: Tensor | None = (token + queries - first).view(-1)
        if is_whole and len(tiles) * num_queries == self.num_tokens:
            tokens = None
        return AttentionGroup(
            num_tiles=len(tiles),
            tokens=tokens,
            computed=None if is_whole else (places == queries).view(-1).nonzero().squeeze(1),
            # Padding reads the row's own last key, never a page that may hold another's
            keys=self._page_rows(row, torch.minimum(keys, last)),
            bias=None if is_even and num_queries == 1 else self._bias(queries, keys),
        )

    def _page_rows(self, row: Tensor, positions: Tensor) -> Tensor:
        """row: [B, 1], positions: [B, K]; returns [B * num_kv_heads * K]."""
        pages = self.block_table[row, positions // self.block_size].long()
        slots = pages * self.block_size + positions % self.block_size
        heads = torch.arange(self.num_kv_heads, device=slots.device).unsqueeze(1)
        return (slots.unsqueeze(1) * self.num_kv_heads + heads).view(-1)

    def _bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        """queries: [B, Q], keys: [B, K], positions; returns [B, 1, 1, Q, K]."""
        query, key = queries[:, None, None, :, None], keys[:, None, None, None, :]
        seen = key <= query
        if self.window is not None:
            seen &= key > query - self.window
        return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, float("-inf"))
