"""ServerProcess: tritonserver as a child process, that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from inferx.triton.shared_memory import regions_of

# Asks the kernel to end the server when the thread that started it ends, then becomes it.
_TIED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15, 0, 0, 0); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)


class ServerProcess:
    """It leads a process group of its own, whose number is nobody else's until it is reaped."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path | None,
        detached: bool,
    ) -> None:
        """log: None for this process's standard error. Unless `detached`, it ends when the thread
        that starts it does."""
        if not detached:
            command = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
        with log.open("wb") if log else contextlib.nullcontext(2) as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._shared_memory: set[Path] = set()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self, seconds: float | None) -> bool:
        """Whether it ends within that time; None: waits for it."""
        if self._process.returncode is not None:
            return True
        with _pidfds([self._process.pid]) as watch:
            return bool(watch.poll(None if seconds is None else seconds * 1000))

    def wait_with(self, others: Sequence[int]) -> None:
        """Until it, or one of these other processes, has ended."""
        if self._process.returncode is not None:
            return
        # One of them may be gone already
        with contextlib.suppress(ProcessLookupError), _pidfds([self.pid, *others]) as watch:
            watch.poll(None)

    def signal(self, number: int) -> None:
        if not self.has_ended(0):
            self._shared_memory |= regions_of(self.pid)  # what has ended does not say it any more
            self._process.send_signal(number)

    def stop(self, seconds: float) -> None:
        """SIGTERM, then SIGKILL once that time has passed; nothing of it is left running."""
        self.signal(signal.SIGTERM)
        if not self.has_ended(seconds):
            self.signal(signal.SIGKILL)
            self.has_ended(None)
        self.reap()

    def reap(self) -> int:
        """Ends what it has left, once it has ended itself, and returns its exit status."""
        if self._process.returncode is None:
            self._shared_memory |= regions_of(self.pid)
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        for region in self._shared_memory:
            region.unlink(missing_ok=True)
        return status


@contextlib.contextmanager
def _pidfds(pids: Sequence[int]) -> Iterator[select.poll]:
    """What becomes readable when one of the processes has ended, whether it is reaped or not."""
    watch = select.poll()
    with contextlib.ExitStack() as opened:
        for pid in pids:
            descriptor = os.pidfd_open(pid)
            opened.callback(os.close, descriptor)
            watch.register(descriptor, select.POLLIN)
        yield watch
