"""Wishes: what a request lets be done to its steps."""

from __future__ import annotations

from typing import NamedTuple

from inferx.paths.info import SparsePath

NONE = -1  # no row: dense


class Wish(NamedTuple):
    """row: the sparsest that is allowed, NONE where the request is exact; if_faster: it is taken
    only where it is predicted to be faster."""

    row: int
    if_faster: bool


EXACT = Wish(NONE, if_faster=False)


class Wishes:
    """Turns the values of `sparsity` into wishes, with the model's settings."""

    def __init__(
        self, path: SparsePath, default: str | float, *, max_growth: float, batch_invariant: bool
    ) -> None:
        self._path, self.default = path, default
        row = None if batch_invariant else path.sparsest(max_growth)
        # In the batch-invariant mode nothing may depend on who shares the batch, and auto does
        self._auto = EXACT if row is None else Wish(row, if_faster=True)

    def of(self, sparsity: str | float) -> Wish:
        """sparsity: off | auto | a ratio, which the engine's client has checked."""
        if sparsity == "off":
            return EXACT
        if sparsity == "auto":
            return self._auto
        assert not isinstance(sparsity, str)
        row = self._path.index_of(sparsity)
        return EXACT if row is None else Wish(row, if_faster=False)


def together(wishes: list[Wish]) -> Wish:
    """What all of a step's requests allow."""
    return Wish(min(wish.row for wish in wishes), any(wish.if_faster for wish in wishes))
