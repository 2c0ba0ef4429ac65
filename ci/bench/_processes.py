"""The processes of a server under test: which are ours, and the memory they hold."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable

import psutil

ENGINE = "inferx.engine.process"
STUB = "triton_python_backend_stub"
MIB = 1 << 20


def children(pid: int, marker: str) -> list[psutil.Process]:
    """The descendants of `pid` whose command line contains `marker`."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if any(marker in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def ours(pid: int) -> list[psutil.Process]:
    """Stubs and engine processes under the server `pid`."""
    return children(pid, STUB) + children(pid, ENGINE)


def memory(processes: list[psutil.Process]) -> int:
    """Bytes of RAM that the processes hold, shared pages counted once (PSS)."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def gone_within(processes: list[psutil.Process], seconds: float) -> float | None:
    """Seconds until every process has ended; None where one is left after `seconds`."""
    start = time.monotonic()
    _, left = psutil.wait_procs(processes, timeout=seconds)
    left = [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
    return None if left else time.monotonic() - start


def metrics(url: str, name: str, **labels: str) -> float:
    """The sum of a Prometheus family's samples whose labels match; 0 where there are none."""
    with urllib.request.urlopen(f"http://{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith((name + "{", name + " ")) and all(label in line for label in wanted)
    )


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Polls every 50 ms until the condition holds; False where it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
