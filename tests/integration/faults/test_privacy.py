"""Neither prompts nor outputs reach the log or the metrics, and nobody forges a log line."""

import contextlib
from pathlib import Path

import pytest
from inferx_client import InferenceError
from served import Served, metrics_text

CANARY = "canary-5f2c9e"


def log_of(model: Served) -> str:
    log: Path | None = model.server.log_path
    assert log is not None
    return log.read_bytes().decode("utf-8", "replace")


def test_prompts_outputs_and_salts_are_in_neither_log_nor_metrics(smollm2: Served) -> None:
    answer = smollm2.generate(
        f"The secret word is {CANARY}. Repeat: the secret word is", max_tokens=12
    )
    requests = [
        {"stop": [CANARY], "cache_salt": CANARY, "max_tokens": 2},
        {"max_tokens": CANARY},
        {CANARY: 1},
        {"logit_bias": {CANARY: 1}},
        {"max_tokens": 10**6},
        {"max_tokens": 500, "timeout": 0.05},
    ]
    for options in requests:
        with contextlib.suppress(InferenceError):
            smollm2.generate(f"More of {CANARY}", **options)
    smollm2.wait_until_idle()
    for text in (log_of(smollm2), metrics_text(smollm2.server)):
        assert CANARY not in text
        assert answer.text.strip() not in text


@pytest.mark.parametrize(
    "request_id",
    [
        "a\nE1129 00:00:00.000000 1 forged.cc:1] forged line",
        "a\r\nforged line",
        "\x1b[2Jforged line\x07",
        "\u2028forged line",
        "x" * 100_000,
    ],
)
def test_line_breaks_in_a_request_id_forge_no_log_line(mortal: Served, request_id: str) -> None:
    assert mortal.generate("Once", max_tokens=2, request_id=request_id).num_output_tokens == [2]
    with pytest.raises(InferenceError):
        mortal.generate("Once", max_tokens=0, request_id=request_id)
    log = log_of(mortal)
    assert "\x1b" not in log
    assert not [line for line in log.splitlines() if "forged line" in line and "\\" not in line]
    assert "x" * 1000 not in log


def test_metric_labels_come_from_a_short_list(smollm2: Served) -> None:
    for line in metrics_text(smollm2.server).splitlines():
        if line.startswith("inferx:"):
            labels = line.partition("{")[2].partition("}")[0]
            names = {label.partition("=")[0] for label in labels.split(",")}
            assert names <= {"model", "version", "le", "finished_reason", "reason"}, line
