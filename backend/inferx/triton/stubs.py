"""The processes in which tritonserver runs Python models."""

from __future__ import annotations

from inferx.triton.processes import processes

_NAME = "triton_python_b"  # the kernel keeps 15 characters of triton_python_backend_stub


def stubs_of(server_pid: int) -> list[int]:
    """Process ids of those that run."""
    return [
        process.pid
        for process in processes()
        if process.name == _NAME and process.parent == server_pid and process.state != "Z"
    ]
