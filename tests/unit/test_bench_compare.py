"""ci/bench/compare: ratios, bars and what is missing, from two files of JSON lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

COMPARE = Path(__file__).parents[2] / "ci" / "bench" / "compare"


def engine(label: str, requests: int, outputs: int, seconds: float) -> dict[str, Any]:
    tokens = requests * outputs
    return {
        "engine": "x", "shape": "llama8b", "precision": "fp8", "label": label,
        "requests": requests, "inputs": 16, "outputs": outputs, "seconds": seconds,
        "out_tok_s": round(tokens / seconds, 1), "ms_per_step": round(1e3 * seconds / outputs, 3),
    }  # fmt: skip


def served(label: str, pace: float) -> dict[str, Any]:
    return {"precision": "fp8", "label": label, "out_tok_s": pace, "p50_s": 0.5, "p99_s": 0.75}


def compare(tmp_path: Path, ours: list[object], peer: list[object]) -> tuple[int, list[str]]:
    for name, lines in (("ours", ours), ("peer", peer)):
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, COMPARE, tmp_path / "ours", tmp_path / "peer"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout.splitlines()


def test_every_row_has_its_unit_ratio_and_verdict(tmp_path: Path) -> None:
    status, lines = compare(
        tmp_path,
        [
            {"precision": "fp8", "startup_s": 12.04},
            engine("warm-up", 4, 16, 1.0),
            engine("decode", 1, 256, 0.64),
            engine("batch 256", 256, 256, 8.0),
            served("streaming 501/128 at 1", 420),
            "ok engine: done",
        ],
        [
            {"precision": "fp8", "startup_s": 94.0},
            engine("decode", 1, 256, 0.96),
            engine("batch 256", 256, 256, 8.8),
            served("streaming 501/128 at 1", 280),
            "[1, 2]",
        ],
    )
    assert lines[2:-1] == [
        "| start | fp8 | 94.0 s | 12.0 s | 7.81× | 30 s | ok |",
        "| decode (1 × 16 in, 256 out) | fp8 | 3.75 ms a token | 2.50 ms a token "
        "| 1.50× | 1.4× | ok |",
        "| batch 256 (256 × 16 in, 256 out) | fp8 | 7,447 tok/s | 8,192 tok/s "
        "| 1.10× | 1.15× | short |",
        "| streaming 501/128 at 1 | fp8 | 280 tok/s, p50 0.50 p99 0.75 s "
        "| 420 tok/s, p50 0.50 p99 0.75 s | 1.50× | 1.3× | ok |",
    ]  # fmt: skip
    assert lines[-1].startswith("short compare: 3 of 4 bars reached; not run: decode bf16, ")
    assert lines[-1].endswith(": batch 256 fp8")
    assert status == 1


def test_reached_bars_are_ok_and_what_one_side_lacks_is_not_judged(tmp_path: Path) -> None:
    status, lines = compare(
        tmp_path,
        [engine("decode", 1, 256, 0.6)],
        [engine("decode", 1, 256, 0.9), engine("prefill", 1, 1, 0.03)],
    )
    assert lines[3] == "| prefill (1 × 16 in, 1 out) | fp8 | 30.0 ms | — | — | 1.1× | not run |"
    assert lines[-1].startswith(
        "ok compare: 1 of 1 bars reached; not run: decode bf16, prefill fp8"
    )
    assert status == 0


def test_nothing_in_common_is_short(tmp_path: Path) -> None:
    status, lines = compare(tmp_path, [], [engine("decode", 1, 256, 0.9)])
    assert lines[-1].startswith("short compare: 0 of 0 bars reached")
    assert lines[-1].endswith("no workload is in both files")
    assert status == 1
