"""BlockTable: one request's pages, in the order of its tokens."""

from __future__ import annotations

import sys
from collections.abc import Collection

from inferx.memory.pool import PagePool


class BlockTable:
    """Token `position` of the request is in page `pages[position // block_size]`.

    A page is written by one request only. It is shared once it is registered: full of tokens
    that are computed and known, so that nobody writes it again.
    """

    __slots__ = ("_chain", "_num_registered", "_pool", "capacity", "pages", "register_above")

    def __init__(self, pool: PagePool, cache_salt: str | None = None) -> None:
        self._pool = pool
        self._chain = [] if pool.hasher is None else [pool.hasher.root(cache_salt)]
        self._clear()

    def _clear(self) -> None:
        self.pages: list[int] = []
        self.capacity = 0  # tokens that the pages have room for
        self._num_registered = 0  # pages from the first on that need no registration any more
        self.register_above = sys.maxsize  # `register` finds work above so many known tokens

    def open(
        self, token_ids: list[int], *, spare: int = 0, unreadable: Collection[int] = ()
    ) -> int | None:
        """Takes the cached pages of the longest known prefix, and new ones for all the rest.

        Returns how many tokens the prefix has: a multiple of the page size, and fewer than there
        are tokens, because the last one has to be computed to sample what follows. Returns None
        and takes nothing when fewer than `spare` pages would remain available, or when the
        prefix lies in `unreadable` pages.
        """
        prefix = self._find_prefix(token_ids)
        num_new = self._pool.pages_for(len(token_ids)) - len(prefix)
        if num_new + self._pool.num_idle(prefix) + spare > self._pool.num_available:
            return None
        if unreadable and not set(prefix).isdisjoint(unreadable):
            return None
        self._pool.acquire(prefix)
        self.pages = prefix + self._pool.allocate(num_new)
        self.capacity = len(self.pages) * self._pool.block_size
        self._set_registered(len(prefix))
        return len(prefix) * self._pool.block_size

    def reserve(self, num_tokens: int, num_lookahead: int = 0) -> list[int] | None:
        """Room for `num_tokens` tokens and `num_lookahead` drafted ones behind them.

        Returns the pages added at the end, or None, with nothing taken, when the pool has too
        few of them.
        """
        num_new = self._pool.pages_for(num_tokens + num_lookahead) - len(self.pages)
        if num_new > self._pool.num_available:
            return None
        new = self._pool.allocate(max(0, num_new))
        self.pages += new
        self.capacity = len(self.pages) * self._pool.block_size
        return new

    def register(self, token_ids: list[int], num_computed_tokens: int) -> list[int]:
        """Offers the pages that have become full of known and computed tokens to later requests.

        Returns those that were registered; a page whose content is there already stays private.
        """
        hasher = self._pool.hasher
        num_full = min(len(token_ids), num_computed_tokens) // self._pool.block_size
        if hasher is None or num_full <= self._num_registered:
            return []
        hasher.extend(self._chain, token_ids, num_full)
        new = range(self._num_registered, num_full)
        self._set_registered(num_full)
        return [
            self.pages[index]
            for index in new
            if self._pool.register(self.pages[index], self._chain[index + 1])
        ]

    def release(self) -> None:
        """Gives every page back; of those that stay cached, the last is to be evicted first."""
        self._pool.release(reversed(self.pages))
        self._clear()

    def _find_prefix(self, token_ids: list[int]) -> list[int]:
        if self._pool.hasher is None:
            return []
        longest = (len(token_ids) - 1) // self._pool.block_size
        self._pool.hasher.extend(self._chain, token_ids, longest)
        return self._pool.find(self._chain[1 : longest + 1])

    def _set_registered(self, num_pages: int) -> None:
        self._num_registered = num_pages
        if self._pool.hasher is not None:
            self.register_above = (num_pages + 1) * self._pool.block_size
