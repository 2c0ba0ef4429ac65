"""PagePool: who holds which page of the KV cache.

A page is free (nothing worth keeping in it), cached (nobody uses it, its content is registered
and may be found again) or used (`num_free + num_cached + num_used == num_blocks`, always). It
hands out page numbers only; the memory itself belongs to the runner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from inferx.config import PAGE_GRANULE
from inferx.memory.prefix import PrefixHasher


class PagePool:
    """`num_blocks` pages of `block_size` tokens, numbered from 0.

    Raises ValueError for sizes that cannot work, and for a release or an allocation that no
    correct caller makes.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool of {num_blocks} pages holds nothing: expected at least 1")
        if block_size < 1 or block_size % PAGE_GRANULE:
            raise ValueError(
                f"block_size is {block_size}: expected a multiple of {PAGE_GRANULE} tokens"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.hasher = PrefixHasher(block_size) if enable_prefix_caching else None
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack; page 0 goes first
        self._ref_counts = [0] * num_blocks
        self._registered: dict[bytes, int] = {}  # digest of a prefix -> page that ends it
        self._digests: list[bytes | None] = [None] * num_blocks  # the same, by page
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can give: the free ones, and the cached ones by eviction."""
        return len(self._free) + len(self._cached)

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def allocate(self, num_pages: int) -> list[int]:
        """Pages of the caller's own to write into: free ones first, then the longest unused."""
        if num_pages > self.num_available:
            raise ValueError(f"{num_pages} pages asked for, {self.num_available} available")
        pages = [self._free.pop() if self._free else self._evict() for _ in range(num_pages)]
        for page in pages:
            self._ref_counts[page] = 1
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Gives back one reference to each, in the order in which they may be evicted."""
        for page in pages:
            if self._ref_counts[page] == 0:
                raise ValueError(f"page {page} is released more often than it was taken")
            self._ref_counts[page] -= 1
            if self._ref_counts[page] == 0:
                if self._digests[page] is None:
                    self._free.append(page)
                else:
                    self._cached[page] = None

    def register(self, page: int, digest: bytes) -> bool:
        """Lets `find` return this page, which is full and stays as it is.

        False, and nothing happens, when another page of the same content came first.
        """
        if digest in self._registered:
            return False
        self._registered[digest] = page
        self._digests[page] = digest
        return True

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The registered pages of the longest prefix there is of this chain of digests."""
        pages = []
        for digest in digests:
            page = self._registered.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def num_idle(self, pages: Iterable[int]) -> int:
        """How many of these pages `acquire` would take out of what is available."""
        return sum(self._ref_counts[page] == 0 for page in pages)

    def acquire(self, pages: Iterable[int]) -> None:
        """One more reader of each of these registered pages."""
        for page in pages:
            if self._ref_counts[page] == 0:
                del self._cached[page]
            self._ref_counts[page] += 1

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        digest = self._digests[page]
        assert digest is not None
        del self._registered[digest]
        self._digests[page] = None
        return page
