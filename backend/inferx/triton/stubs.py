"""The processes in which tritonserver runs Python models."""

from __future__ import annotations

from pathlib import Path

_NAME = "triton_python_b"  # the kernel keeps 15 characters of triton_python_backend_stub


def stubs_of(server_pid: int) -> list[int]:
    """Process ids of those that run."""
    processes = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(process.name) for process in processes if _is_stub(process, server_pid)]


def _is_stub(process: Path, server_pid: int) -> bool:
    try:
        before, _, after = (process / "stat").read_text().rpartition(")")
    except OSError:  # it has ended meanwhile
        return False
    state, parent, *_ = after.split()
    return before.partition("(")[2] == _NAME and int(parent) == server_pid and state != "Z"
