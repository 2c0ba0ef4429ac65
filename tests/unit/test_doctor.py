"""What `inferx doctor` says of a machine where something is wrong."""

import socket
from pathlib import Path

import pytest
from inferx.entrypoints import doctor, frontend
from inferx.entrypoints.doctor import command, examine


def test_a_driver_that_hangs_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(doctor, "_GPU_SECONDS", 0.1)
    (gpu,) = [finding for finding in examine() if finding.what == "GPU"]
    assert (gpu.state, gpu.detail) == ("absent", "none: models run on the CPU")


def test_ports_that_are_taken_are_said_before_serving_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = ("127.0.0.1", 0)
    with socket.create_server(address) as one, socket.create_server(address) as two:
        first, second = one.getsockname()[1], two.getsockname()[1]
        monkeypatch.setattr(doctor, "_PORTS", (first, 0, second))
        findings = examine()
    (ports,) = [finding for finding in findings if finding.what == "ports"]
    assert ports.state == "absent"
    assert ports.detail == f"{first}, {second} are taken, perhaps by a server that runs"
    assert command("the-model", findings) == (
        "inferx serve the-model --http-port 0 --grpc-port 0 --metrics-port 0 --openai-port 0"
    )
    findings = examine()
    (ports,) = [finding for finding in findings if finding.what == "ports"]
    assert (ports.state, ports.detail) == ("found", f"{first}, 0, {second} are free")
    assert command("the-model", findings) == "inferx serve the-model"


def test_packages_that_serving_needs_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "_PACKAGES", ("fastapi", "no_such_package"))
    (found,) = [finding for finding in examine() if finding.what == "OpenAI API"]
    assert (found.state, found.detail) == (
        "missing",
        "the OpenAI endpoint needs the Python packages no_such_package: "
        "pip install 'inferx[openai]', or start without it: --no-openai",
    )


def test_a_model_repository_is_what_serving_takes_it_for(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text("")
    (model,) = [found for found in examine(model=str(tmp_path)) if found.what == "model"]
    assert (model.state, model.detail) == (
        "found",
        f"{tmp_path}: a model repository of one, two",
    )
