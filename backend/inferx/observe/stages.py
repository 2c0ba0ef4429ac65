"""Stages: what a start spends its time on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Stage(NamedTuple):
    """time.monotonic seconds."""

    name: str
    begin: float
    end: float


class Stages:
    def __init__(self) -> None:
        self.ended: list[Stage] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.ended.append(Stage(name, begin, time.monotonic()))

    @property
    def seconds(self) -> dict[str, float]:
        return {stage.name: stage.end - stage.begin for stage in self.ended}
