"""perf_analyzer, Triton's own load generator, on the same point: a clock that is not ours.

The figures are of its record of every request and response, over the same part of a run as ours:
from the moment that as many requests have ended as are in flight, until the counted ones have
ended, with the load still the same. The pace that it prints itself is lower, and on a short run
much: it divides by all of its time, in which fewer requests are in flight at the beginning and at
the end, and which ends at a whole second.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inferx_client.bench.errors import BenchError
from inferx_client.bench.prompts import Request
from inferx_client.bench.statistics import Figures, Measured
from inferx_client.bench.target import Sending
from inferx_client.bench.timing import Timing

# What the binary of tritonclient's wheel asks for, and as what the embedded server's wheel has it.
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
_LIBRARIES_FOLDER = "nvidia_pytriton.libs"


class PerfAnalyzer(NamedTuple):
    """A point by perf_analyzer's clock; seconds. A latency ends with the last response."""

    requests: int  # counted
    requests_per_second: float
    printed_requests_per_second: float  # its own figure, of its whole run
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
    """Holds `concurrency` requests in flight, with `count` counted ones between as many uncounted
    ones at either end; `requests` in turn.

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
            "--request-count", str(sent_requests(count, concurrency)),
            "-f", str(folder / "table.csv"),
            "--profile-export-file", str(folder / "profile.json"),
        ]  # fmt: skip
        said = await _run(command, _environment(folder / "lib"), limit)
        row, profile = results_in(folder, said)
    return figures_of(
        profile["experiments"][0]["requests"],
        concurrency=concurrency,
        count=count,
        printed=float(row["Inferences/Second"]),
        said=said,
    )


def results_in(folder: Path, said: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Its table's row, and its records. Raises BenchError with the end of what it `said`."""
    try:
        with (folder / "table.csv").open() as lines:
            row = next(csv.DictReader(lines))
        return row, json.loads((folder / "profile.json").read_text())
    except (OSError, StopIteration, ValueError):
        raise BenchError(
            f"perf_analyzer ended well and wrote no results: {said.strip()[-500:]}"
        ) from None


def sent_requests(count: int, concurrency: int) -> int:
    return count + 2 * concurrency


def figures_of(
    records: Sequence[Mapping[str, Any]],
    *,
    concurrency: int,
    count: int,
    printed: float,
    said: str = "",
) -> PerfAnalyzer:
    """Of its `records` of requests and responses, in nanoseconds, and of the pace that it printed.

    Raises BenchError with the end of what it `said` where requests are missing among them.
    """
    timings = sorted(map(_timing, filter(_is_answered, records)), key=lambda one: one.ended)
    last = concurrency + count - 1
    if len(timings) <= last:
        raise BenchError(
            f"perf_analyzer has {len(timings)} answers to {sent_requests(count, concurrency)} "
            f"requests: {said.strip()[-500:]}"
        )
    counted = timings[concurrency : last + 1]
    begin, end = timings[concurrency - 1].ended, timings[last].ended
    figures = Figures.of(Measured(timings, counted, begin, end))
    assert figures.ttft is not None
    assert figures.latency is not None
    return PerfAnalyzer(
        requests=figures.requests,
        requests_per_second=figures.requests_per_second,
        printed_requests_per_second=printed,
        responses_per_second=figures.output_tokens_per_second,  # a token each, as _timing has it
        ttft_mean=figures.ttft.mean,
        latency_mean=figures.latency.mean,
        latency_p50=figures.latency.p50,
        latency_p99=figures.latency.p99,
    )


def _is_answered(record: Mapping[str, Any]) -> bool:
    return bool(record["response_timestamps"])


def _timing(record: Mapping[str, Any]) -> Timing:
    """It does not look into responses: each counts as a token."""
    responses = [moment / 1e9 for moment in record["response_timestamps"]]
    return Timing(
        record["timestamp"] / 1e9, None, responses, [1] * len(responses), ended=responses[-1]
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
            "perf_analyzer is not there: on x86-64 it comes with "
            "pip install 'tritonclient[grpc]==2.51.0'"
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
