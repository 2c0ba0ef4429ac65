"""RunningList: admitted requests, in their order."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from inferx.engine.request import Request

_order = attrgetter("order")


class RunningList(list[Request]):
    """Sorted by `Request.order`; `max_num_seqs` at most, so that an insertion is cheap."""

    def add(self, request: Request) -> None:
        insort(self, request, key=_order)

    def discard(self, request: Request) -> None:
        del self[bisect_left(self, request.order, key=_order)]
