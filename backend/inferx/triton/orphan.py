"""Ends this stub when the server dies without a word.

After SIGKILL of the server a stub whose threads wait for the server in the middle of a send
stays forever, and with it the engine process and the GPU's memory. The parent-death signal is
no help: it is bound to the thread of the server that started the stub, which need not stay.
"""

from __future__ import annotations

import os
import signal
import threading
import time

POLL_INTERVAL = 0.5  # seconds


def end_with_server() -> None:
    """Call once, from the process that tritonserver started."""
    threading.Thread(
        target=_wait_for_another_parent, args=(os.getppid(),), name="inferx-orphan", daemon=True
    ).start()


def _wait_for_another_parent(server: int) -> None:
    while os.getppid() == server:
        time.sleep(POLL_INTERVAL)
    os.kill(os.getpid(), signal.SIGKILL)  # nothing that an orderly end waits for will come
