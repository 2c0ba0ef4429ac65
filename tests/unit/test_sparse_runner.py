"""A model that is served sparsely on a CPU: what masks do, and that exact requests stay exact."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
import torch
from calibrated import calibrated, make_calibrated_model, open_model
from engine_loop import make_core, serve, tokens_of
from inferx.config import EngineConfig
from inferx.engine.sampling import SamplingParams
from inferx.errors import InvalidArgument, ModelLoadError
from inferx.llm import LLM
from inferx.model.activations import Site
from inferx.model.runner import ModelRunner
from inferx.model.runners import load_runner
from inferx.source import ModelSource
from inferx.sparse.calibration import default_path, save_calibration
from inferx.sparse.definitions import masked_energy, sparsity, threshold_mask, union_density
from inferx.sparse.masking import Scoring
from inferx.sparse.probe import COPY_EVERY, ProbeRing, figures
from inferx.sparse.serving import MaskedInputs
from tiny_models import make_tiny_model

CPU = torch.device("cpu")
PROMPT = list(b"the sea and the sky")
DIFFERENT = 24  # tokens, after which a sparse text of the tiny model is another one


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return make_calibrated_model(tmp_path_factory.mktemp("calibrated"))


def config_of(**settings: object) -> EngineConfig:
    defaults = {"model": "tiny", "device": "cpu", "dtype": "float32", "max_num_seqs": 4}
    return EngineConfig.from_mapping({**defaults, **settings})


class Served:
    """Runner, scheduler and loop. Use as a context manager."""

    def __init__(self, source: ModelSource, **settings: object) -> None:
        config = config_of(**settings)
        self.runner = load_runner(config, source)
        assert isinstance(self.runner, ModelRunner)
        self.core = make_core(config, self.runner, caching=True)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.close()

    def texts(self, *requests: tuple[list[int], str | float | None]) -> list[list[int]]:
        """The tokens of prompts that begin together, each with its sparsity."""
        params = [
            SamplingParams(temperature=0, max_tokens=DIFFERENT, ignore_eos=True, sparsity=wish)
            for _, wish in requests
        ]
        got = serve(self.core, [prompt for prompt, _ in requests], params)
        return [tokens_of(outputs) for outputs in got]

    def text(self, prompt: list[int], wish: str | float | None = None) -> list[int]:
        return self.texts((prompt, wish))[0]


@pytest.fixture(scope="module")
def dense_text(source: ModelSource) -> list[int]:
    with Served(source) as served:
        assert served.runner.info.sparse_path is None
        return served.text(PROMPT)


# Requests


def test_a_ratio_is_served_by_its_row_and_the_same_each_time(source, dense_text):
    with Served(source, sparsity=0) as served:
        assert served.text(PROMPT) == dense_text
        assert served.core.stats().sparse.steps == 0
        first = served.text(PROMPT, 0.5)
        assert first != dense_text
        assert served.text(PROMPT, 0.5) == first
        # the first token is the prompt's, and all others are steps of their own
        assert served.core.stats().sparse.steps == 2 * (DIFFERENT - 1)
        assert 0.3 < served.core.stats().sparse.union_density < 0.7
        assert 0 < served.core.stats().sparse.masked_energy < 0.5


def test_the_models_ratio_is_that_of_requests_that_say_nothing(source, dense_text):
    with Served(source, sparsity=0.5) as served:
        sparse = served.text(PROMPT)
        assert served.text(PROMPT, 0.5) == sparse != dense_text
        assert served.text(PROMPT, "off") == dense_text


def test_auto_measures_both_paths_and_takes_one_by_its_cost(source):
    with Served(source, sparsity="auto", sparsity_max_growth=1.0) as served:
        path = served.runner.info.sparse_path
        assert path is not None
        assert path.targets == [0.25, 0.5]
        assert path.costs.tokens == [1, 2, 4]
        assert all(seconds > 0 for seconds in path.costs.dense)
        for costs in path.costs.sparse:
            assert costs.densities == sorted(costs.densities)
            assert costs.densities[0] == 0.0
            assert costs.densities[-1] == pytest.approx(1.0)
        served.text(PROMPT)
        stats = served.core.stats().sparse
        assert stats.choices == DIFFERENT - 1
        assert stats.measured_seconds > 0


@pytest.mark.parametrize("sharing", ["together", "after"])
def test_an_exact_request_is_bit_identical_to_a_dense_server(source, sharing):
    """In the batch-invariant mode; its prompt begins with a text that a sparse request wrote."""
    with Served(source, batch_invariant=True) as served:
        prompt = PROMPT + served.text(PROMPT)
        expected = served.text(prompt)
    with Served(source, batch_invariant=True, sparsity=0) as served:
        assert served.texts((PROMPT, 0.5))[0] != prompt[len(PROMPT) :]
        if sharing == "together":
            sparse, exact = served.texts((PROMPT, 0.5), (prompt, "off"))
            assert len(sparse) == DIFFERENT
        else:
            written = PROMPT + served.text(PROMPT, 0.5)
            exact_of_written = served.text(written, "off")
            exact = served.text(prompt, "off")
            assert served.core.stats().prefix_cache_hits < len(written) + len(prompt)
    if sharing == "after":
        with Served(source, batch_invariant=True) as served:
            assert served.text(written) == exact_of_written
    assert exact == expected


def test_sparse_and_exact_requests_together_make_dense_steps(source):
    with Served(source, sparsity=0) as served:
        served.texts((PROMPT, 0.5), (PROMPT[:5], "off"))
        assert served.core.stats().sparse.steps == 0


def test_offline_requests_choose_their_sparsity_too(source, dense_text):
    with LLM(str(source.path), sparsity=0, dtype="float32", device="cpu") as llm:

        def text(**sparsity: object) -> list[int]:
            params = SamplingParams(
                temperature=0, max_tokens=DIFFERENT, ignore_eos=True, **sparsity
            )
            return llm.generate([PROMPT], params)[0].token_ids

        assert text() == text(sparsity="off") == dense_text
        assert text(sparsity=0.5) != dense_text
        with pytest.raises(InvalidArgument, match=r"sparsity is 0\.3: this model is calibrated"):
            text(sparsity=0.3)


# Masks and their probe


@pytest.fixture(scope="module")
def masked(source: ModelSource) -> MaskedInputs:
    with Served(source, sparsity=0) as served:
        assert served.runner._masked is not None
        return served.runner._masked


@pytest.mark.parametrize("num_tokens", [1, 2, 4])
def test_inputs_are_masked_and_probed_as_defined(masked, num_tokens):
    masked.select(0.5)
    x = torch.randn(num_tokens, 64, generator=torch.Generator().manual_seed(num_tokens))
    before = x.clone()
    found = masked(Site(1, "gate_up"), x)
    index = list(masked._index).index(Site(1, "gate_up"))
    threshold = masked.thresholds[index].item()
    kept = threshold_mask(x, threshold)
    assert torch.equal(found, x * kept)
    assert torch.equal(x, before)
    [[share, union, energy, broken]] = figures(x[None], ~kept[None]).tolist()
    assert share == pytest.approx(sparsity(x, threshold).mean().item())
    assert union == pytest.approx(union_density(kept))
    assert energy == pytest.approx(masked_energy(x, kept).mean().item(), abs=1e-6)
    assert broken == 0


def test_each_row_masks_by_its_own_scores(tmp_path: Path) -> None:
    source, windowed = open_model(tmp_path)
    rows = [calibrated(source, windowed, 0.25), calibrated(source, windowed, 0.5, "weight-aware")]
    masked = MaskedInputs(rows, windowed.model, CPU)
    site, x = Site(0, "qkv"), torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    for row in (rows[1], rows[0]):
        masked.select(row.target)
        scores = Scoring(windowed.model, row.scores)(site, x)
        assert torch.equal(masked(site, x), x * threshold_mask(scores, row.thresholds[site]))


def test_what_is_not_a_number_is_kept_and_counted(masked):
    x = torch.ones(3, 64)
    x[0, 5], x[1] = math.nan, 0.0
    found = masked(Site(0, "o"), x)
    assert found[0].isnan().tolist() == x[0].isnan().tolist()
    dropped = x.abs() <= 2.0  # all but the NaN
    _, _, energy, broken = figures(x[None], dropped[None])[0].tolist()
    assert energy == pytest.approx(1 / 3)  # of the third token alone, which loses all
    assert broken == 2


def test_a_forward_pass_records_every_site_in_its_row(masked):
    generator = torch.Generator().manual_seed(0)
    places = list(masked._index)
    masked._seen.clear()
    masked.select(0.5)
    inputs = [
        torch.randn(2, 96 if site.projection == "down" else 64, generator=generator)
        for site in places
    ]
    for site, x in zip(places, inputs, strict=True):
        masked(site, x)
    masked.record()
    for index, x in enumerate(inputs):
        dropped = x.abs() <= masked.thresholds[index]
        expected = figures(x[None], dropped[None])[0]
        assert torch.equal(masked.probe.current[index], expected)


def test_the_ring_brings_every_step_in_order_however_late_it_is_read():
    ring = ProbeRing(3, CPU)
    for step in range(3 * COPY_EVERY + 1):
        ring.current.fill_(step)
        ring.push(step, 0.25, 1)
    found = [probe for copy in ring.take() for probe in copy.read()]
    assert ring.take() == []
    assert [probe.step for probe in found] == list(range(3 * COPY_EVERY))
    assert all(probe.masked_shares.tolist() == [probe.step] * 3 for probe in found)
    assert all(probe.num_broken == 3 * probe.step for probe in found)


# Loading


def refusal(source: ModelSource, **settings: object) -> str:
    with pytest.raises(ModelLoadError) as refused:
        load_runner(config_of(**settings), source)
    return str(refused.value)


def test_a_setting_without_a_calibration_is_refused(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    source = ModelSource(tmp_path, "huggingface", "tiny")
    for setting in ("auto", 0, 0.25):
        shown = repr(setting) if isinstance(setting, str) else f"{float(setting)}"
        assert refusal(source, sparsity=setting) == (
            f"model 'tiny': the setting sparsity is {shown} and no calibration lies beside the "
            "model: make one with 'inferx sparsity calibrate', or set sparsity to 'off'"
        )


def test_a_ratio_that_is_not_calibrated_is_refused_with_those_that_are(source):
    assert refusal(source, sparsity=0.3) == (
        "model 'tiny': the setting sparsity is 0.3, and the calibrations beside the model are for "
        "0.25, 0.5: set it to one of them"
    )


def test_auto_is_refused_where_every_calibration_costs_too_much(tmp_path: Path) -> None:
    source, windowed = open_model(tmp_path)
    found = calibrated(source, windowed, 0.25)
    dear = msgspec.structs.replace(found, quality=_with_growth(found.quality, 0.08))
    save_calibration(dear, default_path(source, 0.25, "magnitude"))
    assert refusal(source, sparsity="auto") == (
        "model 'tiny': the setting sparsity is 'auto', which takes calibrations that cost at most "
        "3.0% of perplexity, and those beside the model (0.25) cost 8.0% and more: raise "
        "sparsity_max_growth, or name a ratio"
    )
    # of two for one target, the one that costs less is served
    better = calibrated(source, windowed, 0.25, "weight-aware")
    better = msgspec.structs.replace(better, quality=_with_growth(better.quality, 0.02))
    save_calibration(better, default_path(source, 0.25, "weight-aware"))
    with Served(source, sparsity="auto") as served:
        path = served.runner.info.sparse_path
        assert path is not None
        assert [row.growth for row in path.rows] == [0.02]


def _with_growth(quality, growth: float):
    return msgspec.structs.replace(quality, growth=growth)


def test_calibrations_that_are_not_this_models_are_refused_by_name(source, tmp_path: Path) -> None:
    file = default_path(source, 0.25, "magnitude")
    make_tiny_model(tmp_path, seed=1)
    other = ModelSource(tmp_path, "huggingface", "other")
    copy = tmp_path / file.name
    copy.write_bytes(file.read_bytes())
    assert refusal(other, sparsity="auto") == (
        "model 'other': calibration file 'sparsity-25-magnitude.json' is of model 'tiny', and "
        "model 'other' has the same shape with other weights: calibrate this model"
    )
    content = json.loads(file.read_text())
    copy.write_text(json.dumps({**content, "target": 0.5}))
    assert "was changed after it was written" in refusal(other, sparsity="auto")
    copy.write_text(json.dumps({**content, "format": 9}))
    assert "has format 9, and this InferX reads 1" in refusal(other, sparsity="auto")
    copy.write_text("{")
    assert refusal(other, sparsity="auto").startswith(
        "model 'other': calibration file 'sparsity-25-magnitude.json' is not one ("
    )
    load_runner(config_of(), other).close()  # off: nothing of it is read


def test_other_architectures_have_no_sparse_path(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "gpt2")
    source = ModelSource(tmp_path, "huggingface", "tiny")
    assert refusal(source, sparsity="auto").startswith(
        "model 'tiny': the setting sparsity is 'auto', and GPT2LMHeadModel has no sparse path: "
    )
