"""The GPU's runner, its kernels through Triton's interpreter: the same tokens as transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import kernel_cases as cases
import pytest
import torch
from inferx.config import EngineConfig
from inferx.engine.core import EngineCore
from inferx.engine.messages import EngineRequest
from inferx.engine.sampling import SamplingParams
from inferx.engine.scheduler import Scheduler
from inferx.memory.pool import PagePool
from inferx.model.gpu.runner import GpuRunner
from inferx.model.loading import LoadedModel, Stages
from inferx.model.runner import ModelRunner
from inferx.source import ModelSource
from tiny_models import make_tiny_model

Tokens = list[int]
LENGTHS = (1, 5, 17, 40)
COUNT = 6


@pytest.fixture(autouse=True)
def plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels read weights as they are, not in a CPU library's format."""
    monkeypatch.setattr("inferx_kernels.linear._has_blocked_format", lambda weight: False)


def run(
    kind: type[GpuRunner] | type[ModelRunner],
    folder: Path,
    params: Sequence[SamplingParams],
    *,
    budget: int = 64,
    caching: bool = False,
    lengths: Sequence[int] = LENGTHS,
    **settings: object,
) -> tuple[list[Tokens], EngineCore]:
    """What each prompt of LENGTHS gets, all in one batch."""
    given = {
        "model": "tiny", "device": cases.DEVICE.type, "dtype": "float32", "max_num_seqs": 4,
        "max_num_batched_tokens": 64, "num_gpu_blocks_override": 20, "max_model_len": 128,
        "block_size": 16,
    }  # fmt: skip
    config = EngineConfig.from_mapping({**given, **settings})
    stages = Stages()
    source = ModelSource(folder, "huggingface", "tiny")
    runner = kind(config, LoadedModel.load(config, source, stages), stages)
    info = runner.info
    pool = PagePool(info.num_blocks, info.block_size, enable_prefix_caching=caching)
    scheduler = Scheduler(
        pool=pool, max_num_seqs=4, max_num_batched_tokens=budget,
        max_model_len=info.max_model_len, eos_token_ids=info.eos_token_ids,
    )  # fmt: skip
    core = EngineCore(scheduler, runner, overlap=config.enable_async_batch)
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(0, 250, (n,), generator=generator).tolist() for n in lengths]
    got: list[Tokens] = [[] for _ in prompts]
    for uid, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        core.add(EngineRequest(uid, prompt, one))
    while core.has_work:
        for output in core.step():
            got[output.uid] += output.token_ids
    runner.close()
    return got, core


def greedy(count: int = COUNT) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


@pytest.fixture(scope="module", params=["smollm2", "qwen3", "qwen2-sliding", "llama3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    make_tiny_model(folder, request.param)
    return folder


def test_mixed_and_decode_steps_equal_the_reference_runner(folder: Path) -> None:
    params = [greedy()] * len(LENGTHS)
    expected, _ = run(ModelRunner, folder, params)
    assert run(GpuRunner, folder, params)[0] == expected
