"""inferx sparsity, as it is typed: what it writes, and one sentence for each wrong use."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from inferx.cli import app
from inferx.entrypoints.sparsity_tools import Lines
from inferx.errors import InferxError
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model
from typer.testing import CliRunner

TOKENS = ["--tokens", "500", "--device", "cpu", "--dtype", "float32"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(chr(97 + (n * n) % 23) for n in range(2 * 2 * 512)))
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["sparsity", *map(str, arguments)])
    assert result.exception is None, result.exception
    return result.stdout


def refusal(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["sparsity", *map(str, arguments)])
    assert isinstance(result.exception, InferxError), result.output
    return str(result.exception)


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_measure_writes_a_table_json_and_a_picture(model, text, tmp_path, kind):
    picture, figures = tmp_path / f"s.{kind}", tmp_path / "s.json"
    out = run("measure", model, "--text", text, *TOKENS, "--tau", 0.5, "--tau", 2,
              "--json", figures, "--picture", picture)  # fmt: skip
    assert len(out.splitlines()) == 2 + 8
    assert "S(0.5)" in out
    found = json.loads(figures.read_text())
    assert found["num_tokens"] == 768
    assert list(found["sites"][0]["sparsity"]) == ["0.5", "2.0"]
    start = {"png": b"\x89PNG", "svg": b"<?xml"}[kind]
    assert picture.read_bytes().startswith(start)


def test_calibrate_masks_the_products_that_are_named(model, text, tmp_path):
    path = tmp_path / "named.json"
    out = run(
        "calibrate", model, "--target", 0.25, "--text", text, *TOKENS, "--output", path,
        "--product", "down", "--product", "gate_up",
    )  # fmt: skip
    assert re.search(r"2\d\.\d% of the weights of gate_up and down unread \(target 25%\)", out)
    masked = {s["projection"] for s in json.loads(path.read_text())["sites"] if s["target"]}
    assert masked == {"gate_up", "down"}


@pytest.mark.parametrize("command", ["measure", "evaluate"])
def test_one_file_for_figures_and_picture_is_refused(model, tmp_path, command):
    path = tmp_path / "both.svg"
    assert refusal(command, model, "--json", path, "--picture", path) == (
        f"--json and --picture are both '{path}': give two names"
    )


def test_a_product_that_there_is_not_is_refused(model):
    assert refusal("calibrate", model, "--target", 0.25, "--product", "gate") == (
        "--product is 'gate', and is one of qkv, o, gate_up, down"
    )


def test_calibrate_writes_what_evaluate_takes(model, text, tmp_path):
    out = run("calibrate", model, "--target", 0.25, "--text", text, *TOKENS)
    written = model / "sparsity-25-magnitude.json"
    assert out.splitlines()[-1] == f"wrote {written}"
    assert "of the layers' weights unread (target 25%); perplexity on 766 held-out tokens" in out
    curve = tmp_path / "curve.png"
    out = run("evaluate", model, "--text", text, *TOKENS, "--target", 0.25, "--calibration",
              written, "--json", tmp_path / "e.json", "--picture", curve)  # fmt: skip
    ways = [line.split()[0] for line in out.splitlines()[2:]]
    assert ways == ["uniform", "top-k", "calibrated", "weight-aware", "file"]
    assert curve.stat().st_size > 0
    points = json.loads((tmp_path / "e.json").read_text())["points"]
    assert points[2]["perplexity"] == points[4]["perplexity"]


def test_a_model_that_is_not_there_is_refused_by_each_command():
    for command in (["measure"], ["calibrate", "--target=0.25"], ["evaluate"]):
        assert refusal(*command, "./nowhere") == (
            "model './nowhere': there is no such file or folder; a hub id has the form org/name, "
            "a model in a Python package package:NAME"
        )


def test_a_text_that_is_too_short_is_refused(model, text, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.touch()
    assert refusal("measure", model, "--text", empty, "--tokens", 1) == (
        "the text 'empty.txt' has 0 windows of 512 tokens, and 1 tokens to count take 2: give a "
        "longer text, or lower --tokens"
    )
    assert refusal("calibrate", model, "--target", 0.25, "--text", text, "--tokens", 1000) == (
        "half of the text 'text.txt' has 2 windows of 512 tokens, and 1000 tokens to count take 3: "
        "give a longer text, or lower --tokens"
    )


@pytest.mark.parametrize(("given", "shown"), [("0.3", "0.3"), ("25", "25"), ("nan", "nan")])
def test_a_target_that_calibrate_does_not_know_is_refused(model, given, shown):
    assert refusal("calibrate", model, "--target", given) == (
        f"--target is {shown}, and is one of 0.25, 0.4, 0.5"
    )


@pytest.mark.parametrize("given", ["0", "0.7", "nan"])
def test_a_target_that_evaluate_does_not_take_is_refused(model, given):
    assert refusal("evaluate", model, "--target", given) == (
        f"--target is {given}, and is a share: above 0, up to 0.65"
    )


def test_a_model_without_a_fused_implementation_is_refused(tmp_path):
    make_tiny_model(tmp_path, "gpt2")
    assert refusal("measure", tmp_path) == (
        f"model '{tmp_path.name}': it is a GPT2LMHeadModel, and sparsity is known of Llama-like "
        "models only: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
    )


def test_a_text_that_cannot_be_read_is_refused(model, tmp_path):
    missing, latin = tmp_path / "missing.txt", tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    assert refusal("measure", model, "--text", missing) == (
        f"the text '{missing}' cannot be read: No such file or directory"
    )
    assert refusal("measure", model, "--text", latin) == (
        f"the text '{latin}' is not UTF-8: convert it first"
    )


def test_outputs_are_checked_before_the_work(model, tmp_path, monkeypatch):
    nowhere = tmp_path / "nowhere" / "s.json"
    assert refusal("measure", model, "--json", nowhere) == (
        f"--json is '{nowhere}': give a file in a folder that exists"
    )
    assert refusal("measure", model, "--picture", tmp_path / "s.gif") == (
        "--picture is 's.gif', and ends in .png or .svg"
    )
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert refusal("measure", model, "--picture", tmp_path / "s.png") == (
        "--picture needs matplotlib, which is not installed: pip install -e '.[report]'"
    )


def test_an_output_that_cannot_be_written_is_refused_before_the_work(model):
    given = (  # no one may make files there
        (["measure", model], "--json", "/proc/s.json"),
        (["measure", model], "--picture", "/proc/s.png"),
        (["evaluate", model], "--json", "/proc/s.json"),
        (["calibrate", model, "--target=0.25"], "--output", "/proc/s.json"),
    )
    for command, option, path in given:
        assert refusal(*command, option, path, "--text=never-read.txt") == (
            f"the file {path!r} cannot be written (No such file or directory): name another with "
            f"{option}"
        )


@pytest.mark.parametrize(
    ("command", "option"),
    [(["measure"], "--json"), (["evaluate"], "--picture"), (["calibrate"], "--output")],
)
def test_an_output_that_no_file_can_be_named_is_refused_before_the_work(model, command, option):
    path = "x" * 300
    rest = ["--target=0.25"] if command == ["calibrate"] else []
    assert refusal(*command, model, *rest, option, path, "--text=never-read.txt") == (
        f"the file {path!r} cannot be written (File name too long): name another with {option}"
    )


def test_no_file_but_a_calibration_is_written_over(model):
    config = Path(model, "config.json")
    before = config.read_bytes()
    assert refusal("calibrate", model, "--target=0.25", "--output", config) == (
        f"the file '{config}' is there and is no calibration: remove it, or name another with "
        "--output"
    )
    assert config.read_bytes() == before


def test_a_disk_that_is_full_is_named(model, text):
    assert refusal("measure", model, "--text", text, *TOKENS, "--json", "/dev/full") == (
        "the file '/dev/full' cannot be written (No space left on device): name another with --json"
    )


def test_what_is_no_calibration_file_is_refused(model, tmp_path):
    path = tmp_path / "c.json"
    assert refusal("evaluate", model, "--calibration", path) == (
        "calibration file 'c.json' cannot be read: No such file or directory"
    )
    path.write_text("{")
    assert refusal("evaluate", model, "--calibration", path) == (
        "calibration file 'c.json' is not one (Input data was truncated): make it again with "
        "'inferx sparsity calibrate'"
    )


@pytest.mark.parametrize(
    ("factor", "shown"), [(1e5, r"\d.*e\+0\d"), (float("inf"), "nan"), (float("nan"), "nan")]
)
def test_a_model_to_which_text_is_impossible_is_refused(text, tmp_path, factor, shown):
    make_tiny_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"] *= factor  # behind all that is masked
    save_file(weights, tmp_path / "model.safetensors")
    for command in ("calibrate", "evaluate"):
        assert re.fullmatch(
            rf"the model finds its text next to impossible \(a token's mean -log p is {shown}\): "
            r"take another --dtype, or check the model's weights",
            refusal(command, tmp_path, "--target=0.25", "--text", text, *TOKENS),
        )
    assert not list(tmp_path.glob("sparsity-*"))


def test_progress_in_a_log_is_a_line_for_every_tenth(capsys):
    lines = Lines()
    for done in range(1, 31):
        lines("splitting layers", done, 30)
    assert capsys.readouterr().err.splitlines() == [
        f"splitting layers: {3 * tenth} of 30" for tenth in range(1, 11)
    ]


@pytest.mark.parametrize("tau", ["-1", "nan", "inf"])
def test_a_threshold_that_is_no_magnitude_is_refused(model, tau):
    assert refusal("measure", model, f"--tau={tau}") == (
        "--tau is a magnitude: give a number that is at least 0"
    )
