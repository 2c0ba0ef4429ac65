"""perf_analyzer, Triton's own load generator, on the same point: a clock that is not ours."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inferx_client.bench.errors import BenchError
from inferx_client.bench.prompts import Request
from inferx_client.bench.target import Sending

# What the binary of tritonclient's wheel asks for, and as what the embedded server's wheel has it.
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
_LIBRARIES_FOLDER = "nvidia_pytriton.libs"
_WINDOWS = 3  # the fewest that perf_analyzer takes a figure from
_ANY_SPREAD = "999"  # percent between windows: one steady point is measured, not sought
_MEAN = re.compile(r"Avg latency: (\d+) usec")


class PerfAnalyzer(NamedTuple):
    """What perf_analyzer says of a point; seconds. A latency ends with the last response."""

    requests: int
    requests_per_second: float
    responses_per_second: float
    ttft_mean: float
    latency_mean: float
    latency_p50: float
    latency_p99: float


async def run_perf_analyzer(
    url: str,
    model: str,
    requests: Sequence[Request],
    sending: Sending,
    *,
    concurrency: int,
    count: int,
    limit: float = 600.0,
) -> PerfAnalyzer:
    """Holds `concurrency` requests in flight until about `count` have ended; `requests` in turn.

    Raises BenchError where the program is missing, fails, or takes longer than `limit` seconds.
    """
    program = _program()
    with tempfile.TemporaryDirectory(prefix="inferx-perf-analyzer-") as name:
        folder = Path(name)
        data = {"data": [_inputs(request, sending) for request in requests]}
        (folder / "inputs.json").write_text(json.dumps(data))
        command = [
            program, "-m", model, "-u", url, "-i", "grpc", "--streaming",
            "--input-data", str(folder / "inputs.json"),
            "--concurrency-range", str(concurrency),
            "--measurement-mode", "count_windows",
            "--measurement-request-count", str(max(1, -(-count // _WINDOWS))),
            "--stability-percentage", _ANY_SPREAD, "--max-trials", str(_WINDOWS),
            "-f", str(folder / "table.csv"),
            "--profile-export-file", str(folder / "profile.json"),
        ]  # fmt: skip
        said = await _run(command, _environment(folder / "lib"), limit)
        with (folder / "table.csv").open() as lines:
            row = next(csv.DictReader(lines))
        profile = json.loads((folder / "profile.json").read_text())
    return _figures(said, row, profile)


def _figures(said: str, row: Mapping[str, str], profile: Mapping[str, Any]) -> PerfAnalyzer:
    """Of what it printed, the row of its table, and its record of every response (ns)."""
    records = profile["experiments"][0]["requests"]
    first = [
        (record["response_timestamps"][0] - record["timestamp"]) / 1e9
        for record in records
        if record["response_timestamps"]
    ]
    mean = _MEAN.search(said)
    if mean is None or not first:
        raise BenchError(f"perf_analyzer answered nothing: {said.strip()[-500:]}")
    return PerfAnalyzer(
        requests=len(records),
        requests_per_second=float(row["Inferences/Second"]),
        responses_per_second=float(row["Response Throughput"]),
        ttft_mean=sum(first) / len(first),
        latency_mean=int(mean.group(1)) / 1e6,
        latency_p50=int(row["p50 latency"]) / 1e6,
        latency_p99=int(row["p99 latency"]) / 1e6,
    )


def _inputs(request: Request, sending: Sending) -> dict[str, list[Any]]:
    sampling = {
        "max_tokens": request.output_tokens,
        "temperature": sending.temperature,
        "ignore_eos": sending.ignore_eos,
    }
    return {
        "text_input": [request.prompt],
        "stream": [True],
        "exclude_input_in_output": [True],
        "sampling_parameters": [json.dumps(sampling)],
    }


def _program() -> str:
    beside = Path(sys.executable).parent / "perf_analyzer"
    found = str(beside) if beside.exists() else shutil.which("perf_analyzer")
    if found is None:
        raise BenchError(
            "perf_analyzer is not there: it comes with pip install 'tritonclient[grpc]' on x86-64"
        )
    return found


def _environment(folder: Path) -> dict[str, str]:
    """In which the program finds its libraries: through `folder`, which is made, those of the
    embedded server's wheel where that is installed.
    """
    environment = dict(os.environ)
    wheels = (Path(entry) / _LIBRARIES_FOLDER for entry in sys.path)
    wheel = next((path for path in wheels if path.is_dir()), None)
    if wheel is not None:
        folder.mkdir()
        for name, pattern in _LIBRARIES.items():
            for found in wheel.glob(pattern):
                (folder / name).symlink_to(found)
        searched = [str(folder), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, searched))
    return environment


async def _run(command: Sequence[str], environment: Mapping[str, str], limit: float) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), limit)
    except asyncio.TimeoutError:
        raise BenchError(f"perf_analyzer has not ended within {limit:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = output.decode("utf-8", "replace")
    if process.returncode:
        raise BenchError(f"perf_analyzer failed: {said.strip()[-500:]}")
    return said
