"""What the progress of a load test shows."""

from __future__ import annotations

import pytest
from inferx.entrypoints.bench_display import Display
from inferx_client.bench.loads import ClosedLoad
from inferx_client.bench.prompts import Request
from inferx_client.bench.timing import Timing


@pytest.mark.parametrize(("count", "shown"), [(6, "8/8"), (None, "9/?")])
def test_requests_beyond_the_load_s_do_not_show_in_its_bar(count: int | None, shown: str) -> None:
    """Two streams, two requests of warm-up: one ends after the last that counts."""
    display = Display()
    seconds = 1.0 if count is None else None
    display.begins(ClosedLoad(2, lambda index: Request("Once", 1), 2, count, seconds))
    for number in range(9):
        display.ended(Timing(float(number), None, [number + 0.5], [1], ended=number + 0.5))
    (task,) = display._progress.tasks
    assert "/".join((f"{task.completed:g}", f"{task.total or '?'}")) == shown
    assert task.fields["now"] == "9 tokens, 500 ms a request"
