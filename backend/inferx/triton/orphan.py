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
from collections.abc import Sequence
from pathlib import Path

POLL_INTERVAL = 0.5  # seconds
_STUB = b"triton_python_backend_stub"
_SERVER_AT = 5  # of its arguments: after the model, the name of its shared memory and two sizes


def end_with_server() -> None:
    """Call once, from the process that tritonserver started."""
    arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    parent = os.getppid()
    threading.Thread(
        target=_wait_for_its_end,
        args=(parent, server_of(arguments, parent)),
        name="inferx-orphan",
        daemon=True,
    ).start()


def server_of(arguments: Sequence[bytes], parent: int) -> int:
    """The process id that the stub's own arguments name: the parent of now is another one where the
    server has died since. `parent` where they are not a stub's."""
    if len(arguments) <= _SERVER_AT or not arguments[0].endswith(_STUB):
        return parent
    named = arguments[_SERVER_AT]
    return int(named) if named.isdigit() else parent


def _wait_for_its_end(parent: int, server: int) -> None:
    while os.getppid() == parent and Path(f"/proc/{server}").exists():
        time.sleep(POLL_INTERVAL)
    os.kill(os.getpid(), signal.SIGKILL)  # nothing that an orderly end waits for will come
