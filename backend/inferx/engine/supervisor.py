"""Supervisor: keeps one engine process running, and knows in which state it is.

One thread does it all, so that there is one owner: it spawns the process (the parent-death signal
needs a thread that stays), receives what the process says, sends the heartbeat, notices its end or
its silence, and starts it again within a budget of restarts.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from inferx.config import EngineConfig
from inferx.engine.messages import (
    EngineFailed,
    EngineInfo,
    EngineLoading,
    EngineReady,
    EngineStats,
    FromEngine,
    Ping,
    Pong,
    RequestOutput,
    StepOutputs,
    ToEngine,
)
from inferx.engine.restarts import RestartBudget
from inferx.engine.spawn import EngineProcess
from inferx.engine.stats import after_end, total
from inferx.errors import ModelLoadError, Unavailable

logger = logging.getLogger(__name__)

PING_INTERVAL = 0.5  # seconds, at most
JOIN_MARGIN = 8.0  # seconds beyond close's timeout: killing and reaping


class State(enum.Enum):
    """The value is what a request hears."""

    NEW = "the engine has not been started"
    STARTING = "the engine is still loading the model; try again shortly"
    UP = ""
    RESTARTING = "the engine ended unexpectedly and is being restarted; try again shortly"
    DOWN = "the engine is down and will not be restarted; the server's log says why"
    CLOSED = "the model is being unloaded"


class EngineLost(Exception):
    """The engine process is of no use any more; the text is the sentence that says why."""


class Supervisor:
    """`on_outputs` and `on_lost` are called from the supervisor's thread and must be quick.

    `on_lost` gets the state that follows whenever the requests in flight will have no more outputs.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_outputs: Callable[[list[RequestOutput]], None],
        on_lost: Callable[[State], None],
    ) -> None:
        self._config = config
        self._on_outputs = on_outputs
        self._on_lost = on_lost
        self._name = f"model {Path(config.model).name or config.engine!r}"
        self._ping_interval = min(PING_INTERVAL, config.heartbeat_timeout / 4)
        self._budget = RestartBudget(config.max_engine_restarts)
        self._thread = threading.Thread(target=self._run, name="inferx-engine", daemon=True)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()  # guards state, engine and the engine's sending side
        self._engine: EngineProcess | None = None
        self._close_lock = threading.Lock()
        self._started = threading.Event()
        self._closing = threading.Event()
        self._close_deadline = 0.0
        self._failure: str | None = None
        self._ended = EngineStats()  # counters of the engines that are gone
        self.state = State.NEW
        self.info: EngineInfo | None = None
        self.stats = EngineStats()
        self.num_restarts = 0

    def start(self) -> EngineInfo:
        """Spawns the engine and waits until it is ready. Raises ModelLoadError."""
        with self._close_lock:
            if self._closing.is_set():
                raise ModelLoadError(f"{self._name}: the engine is closed")
            self._thread.start()
        self._started.wait()
        if self.info is None:
            raise ModelLoadError(self._failure or f"{self._name}: closed while it loaded")
        return self.info

    def send(self, message: ToEngine) -> None:
        """From any thread; never waits. Raises Unavailable unless the engine is up."""
        with self._lock:
            if self.state is not State.UP or self._engine is None:
                raise Unavailable(self.state.value)
            self._engine.send(message)

    def close(self, timeout: float) -> None:
        """Stops the engine, at the latest by force after `timeout` seconds, and reaps it."""
        with self._close_lock:
            if self._closing.is_set():
                return
            self._close_deadline = time.monotonic() + timeout
            self._closing.set()
            os.eventfd_write(self._wake_fd, 1)
            if self._thread.ident is not None:
                self._thread.join(timeout + JOIN_MARGIN)
            if self._thread.is_alive():
                logger.error("the engine's thread is stuck in a callback: killing the engine")
                if self._engine is not None:
                    self._engine.kill()
            else:
                os.close(self._wake_fd)
            self._enter(State.CLOSED)

    # The rest runs in the supervisor's thread, apart from `_enter`

    def _run(self) -> None:
        self._enter(State.STARTING)
        delay: float | None = 0.0
        try:
            while delay is not None and not self._closing.wait(delay):
                delay = self._live()
        finally:
            self._enter(State.DOWN)
            self._started.set()

    def _live(self) -> float | None:
        """One engine process, to its end. Returns the pause before the next, None: no next."""
        engine = None
        grace = 0.0
        try:
            engine = EngineProcess(self._config, self._wake_fd)
            self._await_ready(engine)
            self._watch(engine)
            if self.state is State.UP:
                grace = self._close_deadline - time.monotonic()
            self._enter(State.CLOSED)
            return None
        except EngineLost as lost:
            return self._lost(str(lost))
        except OSError as error:
            return self._lost(
                f"{self._name}: the engine process could not be started: {error.strerror or error}"
            )
        except Exception as error:
            logger.exception("supervising the engine failed")
            return self._lost(
                f"{self._name}: supervising the engine failed with {type(error).__name__}"
            )
        finally:
            if engine is not None:
                engine.end(grace)

    def _await_ready(self, engine: EngineProcess) -> None:
        """Until EngineReady, or until `close`. Raises EngineLost."""
        deadline = time.monotonic() + self._config.start_timeout
        while not self._closing.is_set():
            for message in engine.receive(deadline - time.monotonic()):
                if isinstance(message, EngineLoading):
                    engine.hide()
                elif isinstance(message, EngineFailed):
                    raise EngineLost(message.message)
                elif isinstance(message, EngineReady):
                    self._up(engine, message.info)
                    return
            if (ending := engine.how_it_ended()) is not None:
                raise EngineLost(
                    f"{self._name}: the engine process {ending} while it loaded{_hint(ending)}"
                )
            if time.monotonic() > deadline:
                raise EngineLost(
                    f"{self._name}: the engine was not ready within "
                    f"{self._config.start_timeout:g} seconds (start_timeout)"
                )

    def _up(self, engine: EngineProcess, info: EngineInfo) -> None:
        stages = ", ".join(
            f"{stage} {seconds:.2f} s" for stage, seconds in info.load_seconds.items()
        )
        logger.info("%s: engine process %d is ready: %s", self._name, engine.pid, stages)
        self.info = info
        self._enter(State.UP, engine)
        self._started.set()

    def _watch(self, engine: EngineProcess) -> None:
        """Takes what the engine says, until `close`. Raises EngineLost."""
        silence = 0.0
        number = 0
        now = next_ping = time.monotonic()
        while not self._closing.is_set():
            if now >= next_ping:
                number += 1
                self.send(Ping(number))
                next_ping = now + self._ping_interval
            messages = engine.receive(next_ping - now)
            before, now = now, time.monotonic()
            # A turn that took longer means that this process was stopped, maybe the engine too.
            silence = 0.0 if messages else silence + min(now - before, self._ping_interval)
            for message in messages:
                self._take(message)
            if not messages and (ending := engine.how_it_ended()) is not None:
                raise EngineLost(f"{self._name}: the engine process {ending}{_hint(ending)}")
            if silence > self._config.heartbeat_timeout:
                raise EngineLost(
                    f"{self._name}: the engine process gave no sign of life for "
                    f"{self._config.heartbeat_timeout:g} seconds (heartbeat_timeout)"
                )

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, StepOutputs):
            self._on_outputs(message.outputs)
        elif isinstance(message, Pong):
            self.stats = total(self._ended, message.stats)

    def _lost(self, reason: str) -> float | None:
        """Tells everyone, and decides what follows. Returns the pause before a restart."""
        if self.info is None:
            self._failure = reason
            self._enter(State.DOWN)
            return None
        delay = self._budget.next_delay(time.monotonic())
        if delay is None:
            logger.error("%s; it is not restarted: %s", reason, self._budget.used_up)
            self._enter(State.DOWN)
            return None
        logger.error("%s; restarting it in %.1f s", reason, delay)
        self.num_restarts += 1
        self._enter(State.RESTARTING)
        return delay

    def _enter(self, state: State, engine: EngineProcess | None = None) -> None:
        with self._lock:
            self.state = state
            self._engine = engine
        if state in (State.RESTARTING, State.DOWN, State.CLOSED):
            self.stats = self._ended = after_end(self.stats)
            self._on_lost(state)


def _hint(ending: str) -> str:
    """The kernel ends a process without a word when memory runs out."""
    return " (memory ran out, if nobody killed it)" if "SIGKILL" in ending else ""
