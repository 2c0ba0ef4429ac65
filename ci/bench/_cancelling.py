"""Streams of random lengths, of which some are left early: one process's part of a load."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

from inferx_client import AsyncClient, InferenceError

_CANCELLED = 0.3  # of the requests
_LONGEST = 180.0  # seconds: a request that has not ended by then never does
_WORDS = ("sea", "clock", "winter", "bread", "river", "moon", "glass", "map", "stone", "lamp")


def drive(
    url: str, model: str, streams: int, seconds: float, seed: int
) -> tuple[Counter[str], list[str]]:
    """Keeps `streams` requests in flight for so long: outcomes, and what went wrong."""
    return asyncio.run(_Traffic(seed).run(url, model, streams, seconds))


class _Traffic:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._outcomes: Counter[str] = Counter()
        self._faults: list[str] = []

    async def run(
        self, url: str, model: str, streams: int, seconds: float
    ) -> tuple[Counter[str], list[str]]:
        end = time.monotonic() + seconds
        async with AsyncClient(url, model) as client:

            async def one_after_another() -> None:
                while time.monotonic() < end:
                    await self._one(client)

            await asyncio.gather(*(one_after_another() for _ in range(streams)))
        return self._outcomes, self._faults

    async def _one(self, client: AsyncClient) -> None:
        wanted = self._random.randint(16, 512)
        leave_after = self._random.randint(1, 60) if self._random.random() < _CANCELLED else None
        try:
            tokens = await asyncio.wait_for(self._stream(client, wanted, leave_after), _LONGEST)
        except (InferenceError, asyncio.TimeoutError) as error:
            self._faults.append(f"{type(error).__name__}: {error}")
            return
        if leave_after is None and tokens != wanted:
            self._faults.append(f"a stream of {wanted} tokens brought {tokens}")
        self._outcomes["left" if leave_after is not None else "done"] += 1

    async def _stream(self, client: AsyncClient, wanted: int, leave_after: int | None) -> int:
        words = self._random.choices(_WORDS, k=self._random.randint(10, 600))
        tokens = responses = 0
        async for delta in client.stream(
            " ".join(words), max_tokens=wanted, ignore_eos=True, temperature=0
        ):
            tokens += delta.num_output_tokens or 0
            responses += 1
            if responses == leave_after:
                break
        return tokens
