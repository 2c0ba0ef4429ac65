"""PrefixHasher: names for prefixes, so that equal prefixes can share pages.

A prefix is named by a chain of digests, one for each granule of PAGE_GRANULE tokens:
digest = BLAKE2b(digest of the granules before, these tokens), from a root that holds the cache
salt. A page of several granules is known by its last one. The key is drawn anew in every
process: who chooses the tokens of one prompt cannot aim at the digest of another.
"""

from __future__ import annotations

import os
from array import array
from hashlib import blake2b

from inferx.config import PAGE_GRANULE

_DIGEST_SIZE = 32  # bytes
_GRANULE_BYTES = PAGE_GRANULE * array("q").itemsize


class PrefixHasher:
    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._key = os.urandom(32)

    def root(self, cache_salt: str | None) -> bytes:
        """Where a chain starts. Prefixes of different salts never share a page."""
        salt = b"" if cache_salt is None else b"+" + cache_salt.encode("utf-8", "surrogatepass")
        return blake2b(salt, key=self._key, digest_size=_DIGEST_SIZE, person=b"root").digest()

    def extend(self, chain: list[bytes], token_ids: list[int], num_pages: int) -> None:
        """Makes `chain` name the first `num_pages` full pages of `token_ids`.

        chain[0] is the root, chain[i] the digest of the prefix that ends with page i - 1; what
        the chain has already is taken as it is.
        """
        first = len(chain) - 1
        if first >= num_pages:
            return
        tokens = token_ids[first * self._block_size : num_pages * self._block_size]
        packed = memoryview(array("q", tokens)).cast("B")
        page_bytes = len(packed) // (num_pages - first)
        digest = chain[-1]
        for page_start in range(0, len(packed), page_bytes):
            for start in range(page_start, page_start + page_bytes, _GRANULE_BYTES):
                granule = packed[start : start + _GRANULE_BYTES]
                state = blake2b(digest, key=self._key, digest_size=_DIGEST_SIZE)
                state.update(granule)
                digest = state.digest()
            chain.append(digest)
