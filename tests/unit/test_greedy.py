"""The check of greedy outputs can pass and can fail: on a CPU, for the GPU's tests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from greedy import TINY_TIES, Reference, Ties, Tokens, check_greedy, generate
from inferx.config import EngineConfig
from inferx.engine.process import load_engine
from tiny_models import make_tiny_model

PROMPTS = [
    torch.randint(0, 250, (n,), generator=torch.Generator().manual_seed(n)).tolist()
    for n in (1, 17, 40, 5)
]
COUNTS = [24, 9, 16, 1]


class Case(NamedTuple):
    reference: Reference
    outputs: list[Tokens]


def outputs(folder: Path, dtype: str, every: int = 0) -> list[Tokens]:
    engine = load_engine(
        EngineConfig.from_mapping({"model": str(folder), "device": "cpu", "dtype": dtype})
    )
    try:
        return generate(engine.core, PROMPTS, COUNTS, every=every)
    finally:
        engine.runner.close()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("tiny")
    reference = Reference(make_tiny_model(folder, "qwen2", dtype="bfloat16").float())
    return Case(reference, outputs(folder, "float32"))


def test_the_same_type_gives_the_same_tokens(case: Case) -> None:
    verdict = check_greedy(case.reference, PROMPTS, case.outputs, COUNTS, Ties(1e-3, 1e-3, 0))
    assert verdict == (4, 0, 0.0)


@pytest.mark.parametrize("head_dim", [16, 80, 96])
def test_bfloat16_parts_from_float32_at_ties_alone(head_dim: int, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path, "llama", dtype="bfloat16", head_dim=head_dim).float()
    got = outputs(tmp_path, "bfloat16", every=3)
    check_greedy(Reference(model), PROMPTS, got, COUNTS, TINY_TIES)


@pytest.mark.parametrize("place", [0, 7, 15])
def test_one_wrong_token_fails(case: Case, place: int) -> None:
    perturbed = [list(output) for output in case.outputs]
    perturbed[2][place] = (perturbed[2][place] + 1) % 250
    with pytest.raises(AssertionError, match=rf"prompt 2 \(40 tokens\): token {place} "):
        check_greedy(case.reference, PROMPTS, perturbed, COUNTS)


def test_the_outputs_of_other_prompts_fail(case: Case) -> None:
    swapped = [case.outputs[2], case.outputs[1], case.outputs[0], case.outputs[3]]
    with pytest.raises(AssertionError):
        check_greedy(case.reference, PROMPTS, swapped, [16, 9, 24, 1])


def test_a_missing_token_fails(case: Case) -> None:
    cut = [case.outputs[0][:-1], *case.outputs[1:]]
    with pytest.raises(AssertionError, match=r"prompt 0 .* brought 23 tokens, not 24"):
        check_greedy(case.reference, PROMPTS, cut, COUNTS)


def test_too_many_ties_fail(case: Case) -> None:
    perturbed = [list(output) for output in case.outputs]
    perturbed[3] = [(perturbed[3][0] + 1) % 250]
    check_greedy(case.reference, PROMPTS, perturbed, COUNTS, Ties(0.1, 99, 0.02))
    with pytest.raises(AssertionError, match=r"1 of 50 tokens are more than 0\.1 nats"):
        check_greedy(case.reference, PROMPTS, perturbed, COUNTS, Ties(0.1, 99, 0.019))
