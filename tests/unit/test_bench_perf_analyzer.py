"""What is made of perf_analyzer's record of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inferx_client.bench.errors import BenchError
from inferx_client.bench.perf_analyzer import figures_of, results_in

SECOND = 10**9  # of its nanoseconds


def record(started: float, *responses: float) -> dict[str, Any]:
    return {
        "timestamp": round(started * SECOND),
        "response_timestamps": [round(moment * SECOND) for moment in responses],
    }


def lockstep(rounds: int, streams: int) -> list[dict[str, Any]]:
    """Requests of a second, all streams at once, that answer after a quarter and at their end."""
    starts = [float(number) for number in range(rounds) for _ in range(streams)]
    return [record(start, start + 0.25, start + 1) for start in starts]


def test_the_figures_are_of_the_part_in_which_all_are_in_flight() -> None:
    slow_begin = [record(-3, -1, 0)] * 4
    figures = figures_of([*slow_begin, *lockstep(3, 4)], concurrency=4, count=8, printed=16 / 7)
    assert figures.requests == 8
    assert figures.requests_per_second == 4
    assert figures.printed_requests_per_second == 16 / 7
    assert figures.responses_per_second == 8
    assert figures.ttft_mean == 0.25
    assert (figures.latency_mean, figures.latency_p50, figures.latency_p99) == (1, 1, 1)


def test_a_request_that_is_still_running_at_the_end_counts_for_what_has_passed() -> None:
    records = [*lockstep(2, 1), record(0.0, 0.5), record(0.5, 1.0, 3.5)]
    figures = figures_of(records, concurrency=1, count=2, printed=0)
    # from 0.5 to 2: half of the first, all of the second, half of the long one
    assert figures.requests_per_second == (0.5 + 1 + 0.5) / 1.5


def test_a_request_without_a_response_is_missed() -> None:
    with pytest.raises(BenchError, match="3 answers to 6 requests: the server went away"):
        figures_of(
            [*lockstep(1, 3), record(1.0)],
            concurrency=1,
            count=4,
            printed=1,
            said="the server went away\n",
        )


@pytest.mark.parametrize("table", [None, "", "Concurrency,Inferences/Second\n1,2.5\n"])
def test_results_that_were_not_written_are_one_sentence(tmp_path: Path, table: str | None) -> None:
    (tmp_path / "profile.json").touch()
    if table is not None:
        (tmp_path / "table.csv").write_text(table)
    with pytest.raises(BenchError, match=r"perf_analyzer ended well and wrote no results: I did$"):
        results_in(tmp_path, "I did\n")
