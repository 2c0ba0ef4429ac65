"""A sparse step of the GPU's kernels, through Triton's interpreter, beside masked inputs."""

from __future__ import annotations

import kernel_cases as cases
import msgspec
import pytest
import torch
from calibrated import make_calibrated_model
from inferx.config import EngineConfig
from inferx.engine.plan import Plan, StepResult
from inferx.engine.sampling import SamplingParams
from inferx.model.activations import PROJECTIONS, Projection, Site
from inferx.model.gpu.limits import Limits
from inferx.model.gpu.llama import GpuLlama
from inferx.model.gpu.masked import GpuRows
from inferx.model.gpu.masked_llama import MaskedLlama
from inferx.model.gpu.steps import Steps
from inferx.model.llama import LlamaForCausalLM
from inferx.model.loading import LoadedModel
from inferx.model.runner import ModelRunner
from inferx.observe.stages import Stages
from inferx.source import ModelSource
from inferx.sparse.timing import decode_plan

NUM_PAGES, PAGE = 20, 16
CONFIG = EngineConfig.from_mapping({
    "model": "tiny", "device": cases.DEVICE.type, "dtype": "bfloat16", "max_num_seqs": 2,
    "num_gpu_blocks_override": NUM_PAGES, "max_model_len": 128, "block_size": PAGE, "sparsity": 0,
})  # fmt: skip


@pytest.fixture(autouse=True)
def plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels read weights as they are, not in a CPU library's format."""
    monkeypatch.setattr("inferx_kernels.linear._has_blocked_format", lambda weight: False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return make_calibrated_model(tmp_path_factory.mktemp("calibrated"), [0.5])


def load(source: ModelSource, masked: set[Site], projections: list[Projection]) -> LoadedModel:
    """With a row that masks these projections, all of some sites and nothing of others: so it is
    not rounding that decides what is kept."""
    loaded = LoadedModel.load(CONFIG, source, Stages())
    [row] = loaded.calibrations
    thresholds = {
        site: 1e30 if site in masked else 0.0 if site.projection in projections else -1.0
        for site in row.thresholds
    }
    sites = [
        msgspec.structs.replace(site, threshold=thresholds[Site(site.layer, site.projection)])
        for site in row.sites
    ]
    return loaded._replace(calibrations=[msgspec.structs.replace(row, sites=sites)])


def step_of(num_tokens: int, vocab_size: int) -> Plan:
    """A step at 50% that asks for the log-probabilities of all tokens."""
    params = SamplingParams(temperature=0, logprobs=vocab_size)
    plan = decode_plan(num_tokens, NUM_PAGES, vocab_size, sparsity=0.5)
    rows = [msgspec.structs.replace(row, sampling=params) for row in plan.new_rows]
    return msgspec.structs.replace(plan, new_rows=rows)


def by_masked_inputs(loaded: LoadedModel, *plans: Plan) -> list[StepResult]:
    runner = ModelRunner(CONFIG, loaded, Stages())
    for plan in plans:
        runner.launch(plan)
    results = [runner.collect() for _ in plans]
    runner.close()
    return results


def by_kernels(loaded: LoadedModel, plan: Plan, projections: list[Projection]) -> StepResult:
    assert isinstance(loaded.model, LlamaForCausalLM)
    kv = [loaded.pages(NUM_PAGES, PAGE) for _ in loaded.model.layers]
    with torch.inference_mode():
        rows = GpuRows(loaded.calibrations, loaded.model, loaded.device)
        assert [list(products) for products in rows.layers] == [projections] * len(rows.layers)
        steps = Steps(Limits(2, 64, 128, PAGE), loaded)
        steps.capture("sparse", MaskedLlama(loaded.model, loaded.dtype, rows), kv)
        return steps.run(plan, GpuLlama(loaded.model, loaded.dtype), kv).result()


def apart(one: StepResult, other: StepResult) -> float:
    """The largest distance of a token's log-probabilities."""
    found = []
    for logprobs, others in zip(one.logprobs, other.logprobs, strict=True):
        assert logprobs is not None
        assert others is not None
        known = dict(zip(others[0].top_ids, others[0].top_logprobs, strict=True))
        pairs = zip(logprobs[0].top_ids, logprobs[0].top_logprobs, strict=True)
        found += [abs(logprob - known[token]) for token, logprob in pairs]
    return max(found)


@pytest.mark.parametrize("num_tokens", [1, 2])
@pytest.mark.parametrize(
    ("masked", "projections"),
    [
        ({Site(0, "o"), Site(1, "down")}, list(PROJECTIONS)),
        ({Site(0, "gate_up")}, ["gate_up"]),
        ({Site(0, "down")}, ["qkv", "down"]),
    ],
)
def test_a_step_is_the_models_without_what_the_row_masks(
    source: ModelSource, num_tokens: int, masked: set[Site], projections: list[Projection]
) -> None:
    """Products that the row does not mask stay dense."""
    loaded = load(source, masked, projections)
    plan = step_of(num_tokens, loaded.config.vocab_size)
    dense = msgspec.structs.replace(plan, sparsity=0.0)
    assert isinstance(loaded.model, LlamaForCausalLM)
    wanted, unmasked = by_masked_inputs(loaded, plan, dense)
    found = by_kernels(loaded, plan, projections)
    assert apart(found, wanted) < 0.1  # bfloat16, rounded in other places
    assert apart(found, unmasked) > 1
