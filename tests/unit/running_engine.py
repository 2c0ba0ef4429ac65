"""A real engine process with the synthetic runner, and what its outputs were."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import psutil
from inferx.config import EngineConfig
from inferx.engine.client import EngineClient
from inferx.engine.messages import RequestOutput

PATIENCE = 20.0  # seconds that anything in these tests may take before it counts as never


def make_client(**settings: Any) -> EngineClient:
    return EngineClient(
        EngineConfig.from_mapping({"engine": "synthetic", "synthetic_step_time": 0.001, **settings})
    )


def engine_process() -> psutil.Process:
    """The one living engine process of this test's process."""
    (child,) = engine_processes()
    return child


def engine_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _is_engine(child)]


def _is_engine(process: psutil.Process) -> bool:
    try:
        return "/inferx-" in " ".join(process.cmdline())  # the sockets' directory
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


class Outputs:
    """A sink for any number of requests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.of: dict[int, list[RequestOutput]] = defaultdict(list)

    def __call__(self, output: RequestOutput) -> None:
        with self._changed:
            self.of[output.uid].append(output)
            self._changed.notify_all()

    def wait_for_last(self, uids: list[int]) -> None:
        self._wait(lambda: all(self.of[uid] and self.of[uid][-1].finished for uid in uids))

    def wait_for_first(self, uids: list[int]) -> None:
        self._wait(lambda: all(self.of[uid] for uid in uids))

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), "the outputs never came"

    def tokens(self, uid: int) -> list[int]:
        return [token_id for output in self.of[uid] for token_id in output.token_ids]

    def error(self, uid: int) -> tuple[str, str] | None:
        return self.of[uid][-1].error

    def num_last(self, uid: int) -> int:
        return sum(output.finished for output in self.of[uid])
