"""EngineProcess: the engine process as its parent sees it, from the spawn to the last trace."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import sys

import zmq

from inferx.config import EngineConfig
from inferx.engine.messages import FromEngine, StartEngine, StopEngine, ToEngine
from inferx.engine.wire import parent_wire, private_directory

logger = logging.getLogger(__name__)

COMMAND = [sys.executable, "-m", "inferx.engine.process"]
_POLL_WITHOUT_PIDFD = 0.05  # seconds between two looks at the process
_DEATH = 5.0  # seconds that a killed process may take to go


class EngineProcess:
    """Spawned by the constructor, ended by `end`.

    The thread that constructs it has to outlive it, since the parent-death signal is bound to that
    thread; it is also the one that calls `receive` and `end`. Raises OSError.
    """

    def __init__(self, config: EngineConfig, wake_fd: int) -> None:
        with contextlib.ExitStack() as cleanup:
            self._directory = private_directory()
            cleanup.callback(self._directory.cleanup)
            self._wire = parent_wire(self._directory.name)
            cleanup.callback(self._wire.close)
            self._wire.send(StartEngine(config))
            self._process = _spawn(self._directory.name)
            assert self._process.stdin is not None
            cleanup.callback(self._process.stdin.close)
            self._poller = zmq.Poller()
            self._poller.register(self._wire.incoming, zmq.POLLIN)
            self._poller.register(wake_fd, zmq.POLLIN)
            self._longest_poll = math.inf
            try:
                pidfd = os.pidfd_open(self._process.pid)
            except OSError:  # an old kernel, or a container that forbids the call
                self._longest_poll = _POLL_WITHOUT_PIDFD
            else:
                cleanup.callback(os.close, pidfd)
                self._poller.register(pidfd, zmq.POLLIN)
            self._cleanup = cleanup.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Never waits. For one thread at a time."""
        self._wire.send(message)

    def receive(self, timeout: float) -> list[FromEngine]:
        """What has arrived; waits up to `timeout` seconds for a message, for the process's end, or
        until `wake_fd` is readable."""
        self._poller.poll(math.ceil(1000 * max(0.0, min(timeout, self._longest_poll))))
        return self._wire.drain()

    def how_it_ended(self) -> str | None:
        """`was killed by SIGKILL`, `ended with exit status 1`; None while it lives."""
        status = self._process.poll()
        if status is None:
            return None
        if status >= 0:
            return f"ended with exit status {status}"
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"

    def hide(self) -> None:
        """Removes the sockets' directory; the two connections stay."""
        self._directory.cleanup()

    def kill(self) -> None:
        self._process.kill()

    def end(self, timeout: float) -> None:
        """Asks the process to stop, kills it after `timeout` seconds, and leaves nothing of it."""
        with self._cleanup:
            self._wire.send(StopEngine())
            if not self._gone(timeout):
                if timeout > 0:
                    logger.warning("engine process %d did not stop in time: killing it", self.pid)
                self._process.kill()
                if not self._gone(_DEATH):
                    logger.error("engine process %d does not go even when killed", self.pid)

    def _gone(self, timeout: float) -> bool:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def _spawn(directory: str) -> subprocess.Popen[bytes]:
    """Its standard input is a pipe whose end is the parent's; all its output goes to our stderr."""
    return subprocess.Popen(
        [*COMMAND, directory, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=sys.__stderr__ or subprocess.DEVNULL,
        env={**os.environ, "PYTHONSAFEPATH": "1"},  # never import from the working directory
    )
