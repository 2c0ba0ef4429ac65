"""A CUDA error ends the engine process and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from inferx.config import EngineConfig
from inferx.engine.client import EngineClient
from inferx.engine.sampling import SamplingParams
from running_engine import Outputs
from tiny_models import make_tiny_model

RESTART = 120.0  # seconds that a new engine may take

pytestmark = pytest.mark.timeout(400)


def test_requests_in_flight_get_errors_and_the_next_engine_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_model(tmp_path, dtype="bfloat16")
    settings = {"model": str(tmp_path), "device": "cuda", "kv_cache_memory_bytes": 1 << 28}
    client = EngineClient(EngineConfig.from_mapping(settings))
    client.start()
    try:
        outputs = Outputs()
        few = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        many = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
        (before,) = client.submit([1, 2, 3], [few], outputs)
        outputs.wait_for_last([before])
        (other,) = client.submit([1, 2, 3], [many], outputs)
        outputs.wait_for_first([other])
        with monkeypatch.context() as patch:
            patch.setattr("inferx.engine.client.check_request", lambda *_: None)
            (bad,) = client.submit([10_000_000], [few], outputs)  # reads beyond the embedding
        outputs.wait_for_last([other, bad])
        for uid in (other, bad):
            error = outputs.error(uid)
            assert error is not None
            assert error[0] == "UNAVAILABLE"

        deadline = time.monotonic() + RESTART
        while not client.is_up:
            assert time.monotonic() < deadline, "no engine came again"
            time.sleep(0.1)
        (after,) = client.submit([1, 2, 3], [few], outputs)
        outputs.wait_for_last([after])
        assert outputs.tokens(after) == outputs.tokens(before)
        assert client.num_restarts == 1
    finally:
        client.close(10)
