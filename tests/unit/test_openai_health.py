"""Which engines the OpenAI endpoint takes for dead, from Triton's metrics page."""

from __future__ import annotations

from inferx.entrypoints.openai.health import _ENGINE_DOWN
from inferx.observe.families import GAUGES

PAGE = """\
# TYPE inferx:engine_up gauge
inferx:engine_up{model="up",version="1"} 1
inferx:engine_up{model="dead",version="1"} 0
inferx:num_requests_running{model="idle",version="1"} 0
"""


def test_an_engine_whose_gauge_is_zero_is_down() -> None:
    assert "inferx:engine_up" in GAUGES
    assert _ENGINE_DOWN.findall(PAGE) == ["dead"]
