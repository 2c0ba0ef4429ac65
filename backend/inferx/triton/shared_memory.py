"""The shared memory through which tritonserver and its Python models talk.

Triton removes it when it ends in order. What it leaves else (it was killed, it crashed, or it was
ended while it loaded) stays until the machine restarts: a server that is started again and again
would fill it.
"""

from __future__ import annotations

import re
from pathlib import Path

from inferx.triton.processes import processes

_REGION = re.compile(r"/dev/shm/triton_\w+_backend_shm_region_[\w-]+")


def regions_of(group: int) -> set[Path]:
    """Those that the processes of a process group have now."""
    return {
        Path(region)
        for process in processes()
        if process.group == group
        for region in _REGION.findall(_maps(process.pid))
    }


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it has ended meanwhile
        return ""
