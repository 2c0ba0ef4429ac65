"""The GPU's runner, its kernels through Triton's interpreter: the same tokens as transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import kernel_cases as cases
import pytest
import torch
from engine_loop import Tokens, make_core, serve, tokens_of
from inferx.config import EngineConfig
from inferx.engine.core import EngineCore
from inferx.engine.plan import TokenLogprobs
from inferx.engine.sampling import SamplingParams
from inferx.model.gpu.limits import Limits
from inferx.model.gpu.runner import GpuRunner
from inferx.model.gpu.startup import largest_step
from inferx.model.loading import LoadedModel
from inferx.model.runner import ModelRunner
from inferx.observe.stages import Stages
from inferx.source import ModelSource
from tiny_models import make_tiny_model

LENGTHS = (1, 5, 17, 40)
COUNT = 6


@pytest.fixture(autouse=True)
def plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels read weights as they are, not in a CPU library's format."""
    monkeypatch.setattr("inferx_kernels.linear._has_blocked_format", lambda weight: False)


class Ran(NamedTuple):
    tokens: list[Tokens]  # of each prompt
    core: EngineCore
    logprobs: list[list[TokenLogprobs]]


def run(
    kind: type[GpuRunner] | type[ModelRunner],
    folder: Path,
    params: Sequence[SamplingParams],
    *,
    budget: int = 64,
    caching: bool = False,
    lengths: Sequence[int] = LENGTHS,
    **settings: object,
) -> Ran:
    """What each prompt gets, all in one batch."""
    given = {
        "model": "tiny", "device": cases.DEVICE.type, "dtype": "float32", "max_num_seqs": 4,
        "max_num_batched_tokens": 64, "num_gpu_blocks_override": 20, "max_model_len": 128,
        "block_size": 16,
    }  # fmt: skip
    config = EngineConfig.from_mapping({**given, **settings})
    stages = Stages()
    source = ModelSource(folder, "huggingface", "tiny")
    runner = kind(config, LoadedModel.load(config, source, stages), stages)
    core = make_core(config, runner, caching=caching, budget=budget)
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(0, 250, (n,), generator=generator).tolist() for n in lengths]
    got = serve(core, prompts, params)
    runner.close()
    logprobs = [[entry for output in of for entry in output.logprobs or []] for of in got]
    return Ran([tokens_of(outputs) for outputs in got], core, logprobs)


def greedy(count: int = COUNT) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


@pytest.fixture(scope="module", params=["smollm2", "qwen3", "qwen2-sliding", "llama3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    make_tiny_model(folder, request.param)
    return folder


def test_mixed_and_decode_steps_equal_the_reference_runner(folder: Path) -> None:
    params = [greedy()] * len(LENGTHS)
    expected = run(ModelRunner, folder, params).tokens
    assert run(GpuRunner, folder, params).tokens == expected


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    make_tiny_model(folder, "smollm2")
    return folder


def test_chunks_a_tiny_pool_and_no_overlap_change_nothing(smollm2: Path) -> None:
    params = [greedy(18)] * 2
    expected = run(ModelRunner, smollm2, params, lengths=(15, 31)).tokens
    settings = {"num_gpu_blocks_override": 4, "max_model_len": 64, "enable_async_batch": False}
    ran = run(GpuRunner, smollm2, params, lengths=(15, 31), budget=20, **settings)
    assert ran.tokens == expected
    assert ran.core.stats().preemptions > 0


def test_a_prompt_of_several_tiles_replays_a_graph_that_has_room_for_more_prompts(
    smollm2: Path,
) -> None:
    """Three heads share a KV head: 100 tokens take three tiles of 128 rows."""
    settings = {"lengths": (100, 3), "budget": 128, "max_num_batched_tokens": 128}
    params = [greedy(3)] * 2
    expected = run(ModelRunner, smollm2, params, **settings).tokens
    assert run(GpuRunner, smollm2, params, **settings).tokens == expected


def test_rows_that_a_graph_has_too_many_write_to_nobodys_pages(smollm2: Path) -> None:
    """Three sequences decode in a graph of four rows. Slot 0's has ended, and its page, the only
    one that is left, is the second sequence's third."""
    params = [greedy(count) for count in (1, 26, 26, 26)]
    settings = {"lengths": (3, 15, 5, 5), "num_gpu_blocks_override": 7, "max_model_len": 64}
    expected = run(ModelRunner, smollm2, params, **settings).tokens
    ran = run(GpuRunner, smollm2, params, **settings)
    assert ran.core.stats().preemptions == 0
    assert ran.tokens == expected


def test_prefix_hits_change_nothing(smollm2: Path) -> None:
    params = [greedy(3)] * 4
    lengths = (40, 40, 40, 40)
    expected = run(ModelRunner, smollm2, params, lengths=lengths, budget=40).tokens
    assert (
        run(GpuRunner, smollm2, params, lengths=lengths, budget=40, caching=True).tokens == expected
    )


def test_more_rows_than_a_few_go_through_the_library(smollm2: Path) -> None:
    lengths = [3] * 20
    params = [greedy(3)] * 20
    settings = {"max_num_seqs": 20, "lengths": lengths}
    expected = run(ModelRunner, smollm2, params, **settings).tokens
    assert run(GpuRunner, smollm2, params, **settings).tokens == expected


def test_rows_of_all_kinds_of_sampling_share_a_batch(smollm2: Path) -> None:
    params = [
        greedy(),
        SamplingParams(temperature=0.8, seed=1, top_k=20, max_tokens=COUNT, ignore_eos=True),
        SamplingParams(temperature=1.2, seed=2, top_p=0.7, max_tokens=COUNT, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=3, min_p=0.1, max_tokens=COUNT, ignore_eos=True),
    ]
    expected = run(ModelRunner, smollm2, params).tokens
    assert run(GpuRunner, smollm2, params).tokens == expected


def test_edited_logits_are_sampled_between_the_two_graphs(smollm2: Path) -> None:
    params = [
        greedy(),
        SamplingParams(temperature=0, logit_bias={7: 50.0}, max_tokens=COUNT, ignore_eos=True),
        SamplingParams(temperature=0, repetition_penalty=3.0, max_tokens=COUNT, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=5, logprobs=2, max_tokens=COUNT, ignore_eos=True),
    ]
    expected = run(ModelRunner, smollm2, params).tokens
    got = run(GpuRunner, smollm2, params).tokens
    assert got == expected
    assert set(got[1]) == {7}


@pytest.mark.parametrize("lengths", [(40,), LENGTHS])
def test_fp8_weights_and_pages_are_near_the_reference(
    smollm2: Path, lengths: tuple[int, ...]
) -> None:
    """Prompts, one token and a few quantize in another place each, and round there."""
    params = [
        SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=0, logit_bias=bias)
        for bias in [{7: 90.0}] * len(lengths)
    ]
    settings = {"dtype": "fp8", "kv_cache_dtype": "fp8", "lengths": lengths}
    wanted, got = (run(kind, smollm2, params, **settings) for kind in (ModelRunner, GpuRunner))
    assert got.tokens == wanted.tokens == [[7, 7, 7]] * len(lengths)
    differences = [
        abs(mine.logprob - its.logprob)
        for ours, reference in zip(got.logprobs, wanted.logprobs, strict=True)
        for mine, its in zip(ours, reference, strict=True)
    ]
    assert sum(differences) / len(differences) < 0.25


@pytest.mark.parametrize(
    ("max_num_seqs", "budget", "max_model_len"),
    [(256, 8192, 4096), (1, 8192, 4096), (1, 1, 64), (8, 3, 64), (2, 300, 128), (7, 100, 512)],
)
def test_the_largest_step_keeps_to_every_limit(
    max_num_seqs: int, budget: int, max_model_len: int
) -> None:
    plan = largest_step(Limits(max_num_seqs, budget, max_model_len, block_size=16))
    assert len(plan.slots) == min(max_num_seqs, budget)
    assert budget - len(plan.slots) < sum(plan.num_tokens) <= budget or (
        plan.num_tokens[-1] == max_model_len
    )
    assert plan.num_decodes == (1 if len(plan.slots) > 1 else 0)
    assert plan.num_tokens[: plan.num_decodes] == [1] * plan.num_decodes
    for row, count, (slot, first, pages) in zip(
        plan.new_rows, plan.num_tokens, plan.block_updates, strict=True
    ):
        assert count <= len(row.token_ids) <= max_model_len
        assert (slot, first) == (row.slot, 0)
        assert len(row.token_ids) <= len(pages) * 16
    used = [page for _, _, pages in plan.block_updates for page in pages]
    assert len(used) == len(set(used))
