"""What `inferx bench` says of options that it cannot follow."""

from __future__ import annotations

from pathlib import Path

import pytest
from inferx.cli import app
from inferx.entrypoints.bench import BenchOptions
from inferx.errors import ConfigError
from typer.testing import CliRunner


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--concurrency=two"], "--concurrency 'two': numbers with commas"),
        (["--concurrency=1", "--rate=1"], "--concurrency and --rate are two loads"),
        (["--workload=finance", "--prompts=p.txt"], "bring prompts of their own"),
        (["--chat"], "--chat needs --openai URL"),
        (["--goodput=fast"], "goodput 'fast': a limit is ttft, tpot, e2e"),
        (["--output=r.pdf"], "--output r.pdf: the name has to end with .json, .csv or .html"),
        (["--rate=1", "--with-perf-analyzer"], "--with-perf-analyzer needs --concurrency"),
        (["--trace=none.csv"], "trace none.csv: No such file"),
        (["--prompts=none.txt"], "prompts none.txt: No such file"),
        (["--prompts=PROMPTS", "--concurrency=2,0"], "concurrency 0: at least one request"),
        (["--prompts=PROMPTS", "--rate=-2"], "a rate of -2 requests a second"),
        (["--prompts=PROMPTS", "--rate=inf"], "a rate of inf requests a second for"),
        (["--prompts=PROMPTS", "--rate=1e9"], "at most 1000000 requests"),
        (["--prompts=PROMPTS", "--concurrency=1000000"], "at most 100000 requests are in flight"),
        (["--prompts=PROMPTS", "--rate=0.001", "--seconds=1"], "0 requests arrive"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, options: list[str], sentence: str) -> None:
    (tmp_path / "prompts.txt").write_text("Once\n")
    given = [option.replace("PROMPTS", f"{tmp_path}/prompts.txt") for option in options]
    ended = CliRunner().invoke(app, ["bench", "model", "--url=127.0.0.1:1", *given])
    assert isinstance(ended.exception, ConfigError)
    assert sentence in str(ended.exception)
    assert "\n" not in str(ended.exception)


def test_a_report_shows_what_was_given_as_zero_too() -> None:
    assert BenchOptions("m", concurrency=(1,), warm_up=0).shown() == {
        "model": "m",
        "url": "127.0.0.1:8001",
        "concurrency": [1],
        "speed": 1.0,
        "scale": 1.0,
        "warm_up": 0,
        "temperature": 0.0,
        "ignore_eos": True,
        "timeout": 600.0,
        "seed": 0,
    }
