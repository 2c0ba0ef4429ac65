"""The shared memory through which tritonserver and its Python models talk.

Triton removes it when it ends in order. What it leaves else (it was killed, it crashed, or it was
ended while it loaded) stays until the machine restarts: a server that is started again and again
would fill it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_REGION = re.compile(r"/dev/shm/triton_\w+_backend_shm_region_[\w-]+")


def regions_of(group: int) -> set[Path]:
    """Those that the processes of a process group have now."""
    return {
        Path(region)
        for process in _processes_of(group)
        for region in _REGION.findall(_maps(process))
    }


def _processes_of(group: int) -> Iterator[Path]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _group_of(process) == group:
            yield process


def _group_of(process: Path) -> int | None:
    try:
        after = (process / "stat").read_text().rpartition(")")[2]
    except OSError:  # it has ended meanwhile
        return None
    _state, _parent, group, *_ = after.split()
    return int(group)


def _maps(process: Path) -> str:
    try:
        return (process / "maps").read_text()
    except OSError:
        return ""
