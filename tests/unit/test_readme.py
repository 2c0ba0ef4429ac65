"""The README and EngineConfig say the same."""

import re
from pathlib import Path

from inferx.config import EngineConfig
from inferx.engine.sampling import _READERS
from inferx.entrypoints.settings import HELP, settings_table
from inferx.observe.families import COUNTERS, GAUGES, HISTOGRAMS

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


def test_the_metrics_table_is_that_of_what_is_written() -> None:
    kinds = {"counter": COUNTERS, "gauge": GAUGES, "histogram": HISTOGRAMS}
    rows = [
        f"| `{name}` | {kind} | {text} |" for kind in kinds for name, text in kinds[kind].items()
    ]
    table = "\n".join(["| name | kind | meaning |", "|---|---|---|", *rows])
    found = re.search(r"<!-- metrics:.*?-->\n(.*?)\n?<!-- end of metrics -->", README, re.DOTALL)
    assert found is not None
    assert found.group(1) == table, f"put this into the README:\n{table}"
