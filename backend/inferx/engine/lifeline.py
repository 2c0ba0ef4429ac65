"""Bound to the parent: a process that must not outlive the one that started it.

SIGKILL gives a parent no chance to tell its children, and a GPU's memory goes only with the
process that holds it. Two independent means: the kernel's parent-death signal, and the end of the
pipe that is this process's standard input, whose write end the parent alone holds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ends this process at once when `parent_pid`, or its thread that spawned us, ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the signal was set
        os._exit(1)
    threading.Thread(target=_exit_at_end_of_stdin, name="lifeline", daemon=True).start()


def _exit_at_end_of_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)
