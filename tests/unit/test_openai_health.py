"""Which engines the OpenAI endpoint takes for dead, from Triton's metrics page."""

from __future__ import annotations

import pytest
from inferx.entrypoints.openai.model_metrics import models_on
from inferx.observe.families import GAUGES

PAGE = """\
# TYPE inferx:engine_up gauge
inferx:engine_up{model="up",version="1"} 1
inferx:engine_up{model="dead",version="1"} 0
inferx:engine_up{model="reloaded",version="1"} 0
inferx:engine_up{model="reloaded",version="2"} 1
inferx:num_requests_running{model="idle",version="1"} 0
"""


def test_an_engine_whose_gauge_is_zero_is_down() -> None:
    assert "inferx:engine_up" in GAUGES
    assert [name for name, model in models_on(PAGE).items() if model.engine_is_down] == ["dead"]


@pytest.mark.parametrize("labels", ["", "{}", '{version="1"}', '{le="0.5",version="1"}'])
def test_figures_that_name_no_model_are_nobodys(labels: str) -> None:
    assert models_on(f"inferx:engine_up{labels} 0\n{PAGE}") == models_on(PAGE)
