"""The GPU's sparse path, its kernels through Triton's interpreter, beside the CPU's masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernel_cases as cases
import msgspec
import numpy as np
import pytest
import torch
from calibrated import calibrated, open_model
from engine_loop import make_core, serve, tokens_of
from inferx.config import EngineConfig
from inferx.engine.sampling import SamplingParams
from inferx.errors import ModelLoadError
from inferx.model.activations import Site
from inferx.model.gpu.limits import Limits
from inferx.model.gpu.masked import GpuRows
from inferx.model.gpu.runner import GpuRunner
from inferx.model.gpu.startup import Rehearsal
from inferx.model.gpu.steps import Steps
from inferx.model.loading import LoadedModel
from inferx.model.runner import ModelRunner
from inferx.observe.stages import Stages
from inferx.source import ModelSource
from inferx.sparse.calibration import default_path, save_calibration
from inferx.sparse.probe import COPY_EVERY
from inferx.sparse.products import weight_shares
from inferx.sparse.timing import decode_plan
from inferx_kernels.sparse import SparseLinear, Threshold
from inferx_kernels.sparse import sparse_linear as reference
from inferx_kernels.triton.sparse_linear import sparse_linear
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

PROMPT = list(b"the sea and the sky")
COUNT = 6  # tokens
Kind = type[GpuRunner] | type[ModelRunner]


@pytest.fixture(autouse=True)
def plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels read weights as they are, not in a CPU library's format."""
    monkeypatch.setattr("inferx_kernels.linear._has_blocked_format", lambda weight: False)
    monkeypatch.setattr("inferx.sparse.timing._TIMES", 1)  # interpreted steps take a second


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """Rows of both kinds of scores."""
    source, windowed = open_model(tmp_path_factory.mktemp("calibrated"))
    for target, scores in ((0.25, "magnitude"), (0.5, "weight-aware")):
        found = calibrated(source, windowed, target, scores)
        save_calibration(found, default_path(source, target, scores))
    return source


class Served:
    def __init__(self, kind: Kind, source: ModelSource, **settings: object) -> None:
        given = {
            "model": "tiny", "device": cases.DEVICE.type, "dtype": "bfloat16", "max_num_seqs": 2,
            "max_num_batched_tokens": 64, "num_gpu_blocks_override": 20, "max_model_len": 128,
            "block_size": 16, "sparsity": 0,
        }  # fmt: skip
        config = EngineConfig.from_mapping({**given, **settings})
        stages = Stages()
        self.loaded = LoadedModel.load(config, source, stages)
        self.runner = kind(config, self.loaded, stages)
        self.core = make_core(config, self.runner)

    def run(self, *wishes: float | str) -> tuple[list[list[int]], list[list[float]]]:
        """As many prompts at once: their tokens, always the same ones, and how likely the model
        found them."""
        params = [
            SamplingParams(
                temperature=0, max_tokens=COUNT, ignore_eos=True, sparsity=wish,
                logit_bias={7: 90.0}, logprobs=0,
            )
            for wish in wishes
        ]  # fmt: skip
        got = serve(self.core, [[*PROMPT, *range(i)] for i in range(len(wishes))], params)
        likely = [[entry.logprob for one in of for entry in one.logprobs or []] for of in got]
        return [tokens_of(outputs) for outputs in got], likely

    @property
    def steps(self) -> int:
        return int(self.core.stats().sparse.steps)


@pytest.fixture(scope="module")
def served(source: ModelSource) -> Callable[[Kind], Served]:
    made: dict[Kind, Served] = {}

    def of(kind: Kind) -> Served:
        if kind not in made:
            made[kind] = Served(kind, source)
        return made[kind]

    return of


@pytest.mark.parametrize("wishes", [(0.5,), (0.25,), (0.5, 0.5)], ids=str)
def test_a_rows_steps_are_masked_products(
    served: Callable[[Kind], Served],
    wishes: tuple[float, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each product beside the reference's of the same input: where bfloat16's rounding decides
    whether a score at the threshold is kept, a channel of the tiny model's few is a large part."""
    apart = []

    def compared(x: Tensor, packed: SparseLinear, threshold: Threshold, **options: Any) -> Tensor:
        y = sparse_linear(x, packed, threshold, **options)
        options.pop("counters")
        apart.append(cases.distance(y, reference(x, packed, threshold, **options).float()))
        return y

    gpu = served(GpuRunner)
    before = gpu.steps
    monkeypatch.setattr("inferx.model.gpu.masked.sparse_linear", compared)
    tokens, _ = gpu.run(*wishes)
    assert tokens == [[7] * COUNT] * len(wishes)
    assert gpu.steps == before + COUNT - 1  # the first token is the prompt's
    assert len(apart) == (COUNT - 1) * 4 * gpu.loaded.config.num_layers
    assert np.median(apart) < 0.01
    assert max(apart) < 0.5


def test_an_exact_request_makes_the_step_dense(served: Callable[[Kind], Served]) -> None:
    gpu = served(GpuRunner)
    before = gpu.steps
    exact = gpu.run("off", "off")
    assert gpu.run("off", 0.5) == exact
    assert gpu.steps == before


def test_the_probe_shows_what_the_reference_shows(served: Callable[[Kind], Served]) -> None:
    found = []
    for kind in (ModelRunner, GpuRunner):
        runner = served(kind).runner
        rows = runner._masked if isinstance(runner, ModelRunner) else runner.sparse_rows
        assert rows is not None
        served(kind).run(0.5, 0.5)
        found.append(rows.probe.current.cpu().numpy())
    np.testing.assert_allclose(found[1], found[0], atol=0.1)
    assert np.abs(found[1] - found[0]).mean() < 0.02
    assert found[0][:, 3].sum() == 0


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("kind", [ModelRunner, GpuRunner])
def test_probes_come_with_the_step_behind_their_copy(
    served: Callable[[Kind], Served], kind: Kind, in_flight: int
) -> None:
    """However long the copy took, and the host."""
    runner = served(kind).runner
    one = decode_plan(1, runner.info.num_blocks, runner.info.vocab_size, sparsity=0.5)
    launched = range(1000, 1000 + COPY_EVERY + 2)
    collected = iter(launched)
    brought: dict[int, list[int]] = {}
    for step in launched:
        runner.launch(msgspec.structs.replace(one, step=step))
        if step - launched.start >= in_flight - 1:
            brought[next(collected)] = [probe.step for probe in runner.collect().probes]
    for _ in collected:
        runner.collect()
    del brought[launched.start]  # which may bring what earlier tests have left
    found = {step: probed for step, probed in brought.items() if probed}
    assert found
    assert all(len(probed) == COPY_EVERY for probed in found.values())
    assert all(probed[-1] == step - 1 for step, probed in found.items())


def test_a_nan_is_counted_wherever_it_comes_from(served: Callable[[Kind], Served]) -> None:
    """By either runner, in every product: and it shows in what the product gives."""
    gpu, cpu = served(GpuRunner), served(ModelRunner)
    rows, masked = gpu.runner.sparse_rows, cpu.runner._masked
    places = [
        (index, name, len(product.weight.weight))
        for index, products in enumerate(rows.layers)
        for name, product in products.items()
    ]
    for index, name, width in places:
        x = torch.ones(2, width, dtype=torch.bfloat16, device=cases.DEVICE)
        x[1, width // 2] = math.nan
        y = rows.layers[index][name](x)
        assert y.isnan().any(1).tolist() == [False, True]
        assert masked(Site(index, name), x)[1].isnan().sum() == 1
    with gpu.runner.computing():
        rows.record(2)
    with torch.inference_mode():
        masked.record()
    for probe in (rows.probe, masked.probe):
        assert probe.current[:, 3].tolist() == [1] * len(places)


@pytest.mark.skipif(cases.DEVICE.type != "cpu", reason="graphs launch their kernels unseen")
def test_every_kernel_that_steps_launch_was_rehearsed(
    served: Callable[[Kind], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was not would be compiled while a request waits."""
    launched: set[str] = set()
    run = InterpretedFunction.run

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        launched.add(self.fn.__name__)
        return run(self, *args, **options)

    monkeypatch.setattr(InterpretedFunction, "run", noted)
    gpu, limits = served(GpuRunner), Limits(2, 4, 128, 16)
    with gpu.runner.computing():
        steps = Steps(limits, gpu.loaded)
        Rehearsal(steps, limits, gpu.loaded, gpu.runner.sparse_rows).compile()
    rehearsed = launched.copy()
    launched.clear()
    gpu.run("off", 0.5)
    gpu.run(0.5)
    assert "sparse_gemv_kernel" in launched
    assert launched <= rehearsed


def test_its_costs_are_measured_at_every_density(served: Callable[[Kind], Served]) -> None:
    path = served(GpuRunner).runner.info.sparse_path
    assert path is not None
    assert path.targets == [0.25, 0.5]
    assert path.costs.tokens == [1, 2]
    for costs in path.costs.sparse:
        assert costs.densities[0] == 0
        assert costs.densities[-1] == 1
        assert all(seconds > 0 for seconds in costs.seconds)


def test_products_too_small_to_gain_stay_dense_and_unmasked(
    served: Callable[[Kind], Served],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = served(GpuRunner).loaded
    largest = max(
        product.packed.weight.nbytes for product in loaded.model.layers[0].products().values()
    )
    monkeypatch.setattr("inferx_kernels.triton.sparse_tuning._LEAST_BYTES", largest)
    rows = GpuRows(loaded.calibrations, loaded.model, loaded.device)
    assert [list(products) for products in rows.layers] == [["gate_up"]] * len(rows.layers)
    assert [record.message for record in caplog.records] == [
        f"sparsity {target} was calibrated with qkv and o and down masked too, which a GPU leaves "
        "dense: drift may be found where there is none; calibrate again with --product gate_up"
        for target in (0.25, 0.5)
    ]
    rows.record(1)  # of no step: masked products have read nothing, and others always read all
    assert rows.union_density == pytest.approx(1 - weight_shares(loaded.config)["gate_up"])
    path = rows.described(served(GpuRunner).runner.info.sparse_path.costs)
    for row, full in zip(path.rows, served(GpuRunner).runner.info.sparse_path.rows, strict=True):
        assert row.share_means[2::4] == full.share_means[2::4]
        assert set(row.share_means[0::4] + row.share_means[1::4] + row.share_means[3::4]) == {0}


def test_weights_that_no_sparse_kernel_takes_are_refused_at_load(
    source: ModelSource, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match=r"cannot be served sparsely: .*float16"):
        Served(GpuRunner, source, dtype="float16")


def test_copies_that_do_not_fit_are_refused_at_load(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("inferx.model.gpu.masked.pack_sparse", full)
    with pytest.raises(ModelLoadError, match="second copies of weights that sparse steps read"):
        Served(GpuRunner, source)
