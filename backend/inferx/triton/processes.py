"""The machine's processes, as /proc shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    name: str  # its first 15 characters
    state: str  # Z: it has ended, and nobody has asked how
    parent: int
    group: int


def processes() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                before, _, after = (entry / "stat").read_text().rpartition(")")
            except OSError:  # it has ended meanwhile
                continue
            state, parent, group, *_ = after.split()
            yield Process(int(entry.name), before.partition("(")[2], state, int(parent), int(group))
