"""The README and EngineConfig say the same."""

import re
from pathlib import Path

from inferx.config import EngineConfig
from inferx.engine.sampling import _READERS
from inferx.entrypoints.settings import HELP, settings_table

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def rendered() -> str:
    rows = [f"| `{name}` | {default} | {meaning} |" for name, default, meaning in settings_table()]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def test_the_settings_table_is_that_of_engine_config() -> None:
    found = re.search(r"<!-- settings:.*?-->\n(.*?)\n?<!-- end of settings -->", README, re.DOTALL)
    assert found is not None
    assert found.group(1) == rendered(), f"put this into the README:\n{rendered()}"


def test_every_setting_has_a_help_text_and_no_other_has() -> None:
    assert set(HELP) == set(EngineConfig.__struct_fields__)


def test_every_sampling_parameter_is_named() -> None:
    (paragraph,) = re.findall(r"^Sampling parameters, in the JSON.*$", README, re.MULTILINE)
    assert set(_READERS) <= set(re.findall(r"`(\w+)`", paragraph))


def test_the_metrics_are_those_that_are_written() -> None:
    # The module itself can be imported by Triton's stub alone.
    source = (Path(__file__).parents[2] / "backend/inferx/triton/metrics.py").read_text()
    written = set(re.findall(r'"(inferx_\w+)"', source))
    shown = set(re.findall(r"^\| `(inferx_\w+)` \|", README, re.MULTILINE))
    assert shown == written
