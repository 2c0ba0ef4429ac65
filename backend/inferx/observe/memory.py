"""What memory this process holds now, and the most that it has held.

On a GPU that is what torch's allocator has taken from the device: weights, KV pages, activations
and graphs, without the CUDA context and the libraries (some hundred MB). On a CPU it is the
process's resident set.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

_STATUS = Path("/proc/self/status")
_LINES = re.compile(r"^(VmHWM|VmRSS):\s+(\d+) kB$", re.MULTILINE)


class Memory(NamedTuple):
    """Bytes."""

    resident: int = 0
    peak: int = 0


def engine_memory(device: str) -> Memory:
    """For the process in which the engine runs on `device`, a torch device type."""
    return _gpu_memory() if device == "cuda" else _process_memory()


def _gpu_memory() -> Memory:
    """Nothing before torch is there and has a device: a report begins to ask earlier."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not getattr(cuda, "is_initialized", bool)():
        return Memory()
    statistics = cuda.memory_stats()
    return Memory(statistics["reserved_bytes.all.current"], statistics["reserved_bytes.all.peak"])


def _process_memory() -> Memory:
    found = dict(_LINES.findall(_STATUS.read_text()))
    resident = int(found["VmRSS"]) * 1024
    return Memory(resident, max(resident, int(found["VmHWM"]) * 1024))
