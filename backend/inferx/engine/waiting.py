"""WaitingQueue: requests that wait for admission, in their order."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from inferx.engine.request import Request


class WaitingQueue:
    """A heap by `Request.order`; what is removed from the middle is only crossed out.

    Crossed-out entries go when they come up, or all together when they outnumber the rest:
    removal is O(1) amortized, and so is the memory a waiting request takes.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []
        self._waiting: set[Request] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, request: Request) -> None:
        heappush(self._heap, (request.order, request))
        self._waiting.add(request)

    def first(self) -> Request | None:
        while self._heap and self._heap[0][1] not in self._waiting:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        """Takes the first one out; it may be pushed again."""
        request = self.first()
        if request is None:
            raise IndexError("nobody waits")
        heappop(self._heap)
        self._waiting.remove(request)
        return request

    def remove(self, request: Request) -> None:
        """Takes this one out for good."""
        self._waiting.remove(request)
        if len(self._heap) > 2 * len(self._waiting) + 16:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapify(self._heap)
