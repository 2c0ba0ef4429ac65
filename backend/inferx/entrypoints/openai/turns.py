"""Turns: streams send together, and sending takes at most half of the event loop's time."""

from __future__ import annotations

import asyncio
import time

_LONGEST = 0.01  # seconds between two turns


class Turns:
    """All streams that wait get their turn at once; the next turn comes no sooner than the sends of
    this one took. With few streams that is at once. With many, tokens gather meanwhile and go out
    as one, so that the cost of sending, which is the same for a token and for ten, leaves room for
    what produces them. For one event loop.
    """

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._scheduled = False
        self._begun = 0.0  # the thread's own time: waiting for a processor is not sending
        self._earliest = 0.0  # loop time of the next turn

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._scheduled:
            self._schedule(loop)
        await turn

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = True
        if self._earliest > loop.time():
            loop.call_at(self._earliest, self._begin, loop)
        else:
            loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = time.thread_time()
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():  # a client that left is not waiting any more
                turn.set_result(None)
        loop.call_soon(self._end, loop)  # behind the tasks that this has woken

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._earliest = loop.time() + min(time.thread_time() - self._begun, _LONGEST)
        self._scheduled = False
        if self._waiting:
            self._schedule(loop)
