"""A model with calibrations beside it, served sparsely: requests, refusals, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import openai
import pytest
from calibrated import make_calibrated_model
from inferx.sparse.calibration import Calibration, default_path, save_calibration
from inferx.sparse.statistics import Summary
from openai import OpenAI
from openai_served import Endpoint, serving

MODEL = "tiny"
TOKENS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its row for 0.25 expects what no text brings: hardly a channel that is not masked."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    source = make_calibrated_model(folder)
    path = default_path(source, 0.25, "magnitude")
    found = msgspec.json.decode(path.read_bytes(), type=Calibration)
    sites = [
        msgspec.structs.replace(site, masked_share=Summary(0.99, 0.01)) for site in found.sites
    ]
    save_calibration(msgspec.structs.replace(found, sites=sites), path)
    return folder


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[Endpoint]:
    with serving(
        str(folder), f"--served-model-name={MODEL}", "--dtype=float32", "--sparsity=auto",
        "--sparsity-max-growth=1",
    ) as endpoint:  # fmt: skip
        yield endpoint


@pytest.fixture(scope="module")
def client(endpoint: Endpoint) -> Iterator[OpenAI]:
    with endpoint.openai() as client:
        yield client


def complete(client: OpenAI, **extra: object) -> str:
    answer = client.completions.create(
        model=MODEL,
        prompt="the sea",
        temperature=0,
        max_tokens=TOKENS,
        extra_body={"ignore_eos": True, **extra},
    )
    return answer.choices[0].text


def counted(endpoint: Endpoint, family: str, value: float) -> None:
    """Waits until a family is at least at a value: metrics are a second old."""
    name = f"inferx:sparse_{family}"
    endpoint.wait_for(lambda: endpoint.gauge(name) >= value, f"{name} never was {value}")


def test_requests_choose_their_sparsity_and_the_metrics_show_it(
    endpoint: Endpoint, client: OpenAI
) -> None:
    exact = complete(client, sparsity="off")
    assert complete(client, sparsity="off") == exact
    sparse = complete(client, sparsity=0.5)
    assert sparse != exact
    assert complete(client, sparsity="0.5") == sparse
    counted(endpoint, "steps_total", 2 * (TOKENS - 1))
    assert endpoint.gauge("inferx:sparse_choices_total") == 0
    counted(endpoint, "union_density", 0.3)
    counted(endpoint, "masked_energy", 0.01)
    assert endpoint.gauge("inferx:sparse_union_density") < 0.7
    complete(client)  # auto, the model's setting
    counted(endpoint, "choices_total", TOKENS - 1)
    counted(endpoint, "predicted_seconds_total", 1e-6)
    counted(endpoint, "measured_seconds_total", 1e-6)


def test_a_ratio_that_is_not_calibrated_is_refused_by_name(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, sparsity=0.3)
    assert (
        "sparsity is 0.3: this model is calibrated for 0.25, 0.5; name one of them, 'auto' or "
        "'off'" in refused.value.message
    )


def test_a_text_unlike_the_calibrations_makes_steps_denser_and_is_counted(
    endpoint: Endpoint, client: OpenAI
) -> None:
    assert endpoint.gauge("inferx:sparse_drifts_total") == 0
    complete(client, sparsity=0.25)
    counted(endpoint, "drifts_total", 1)
    steps = endpoint.gauge("inferx:sparse_steps_total")
    assert complete(client, sparsity=0.5) == complete(client, sparsity="off")
    assert endpoint.gauge("inferx:sparse_steps_total") == steps


def test_a_server_without_its_sparse_path_refuses_ratios_and_serves_auto_dense(
    folder: Path,
) -> None:
    with serving(str(folder), f"--served-model-name={MODEL}", "--dtype=float32") as endpoint:
        page = endpoint.get("/metrics")
        assert 'inferx:sparse_steps_total{model="tiny",version="1"} 0' in page
        with endpoint.openai() as client:
            assert complete(client, sparsity="auto") == complete(client, sparsity="off")
            with pytest.raises(openai.BadRequestError) as refused:
                complete(client, sparsity=0.5)
    assert "sparsity is 0.5: this model is served dense" in refused.value.message
