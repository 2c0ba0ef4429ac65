"""What `inferx doctor` says of a machine where something is wrong."""

import socket
from pathlib import Path

import pytest
from inferx.entrypoints import doctor
from inferx.entrypoints.doctor import examine


def test_a_driver_that_hangs_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(doctor, "_GPU_SECONDS", 0.1)
    (gpu,) = [finding for finding in examine() if finding.what == "GPU"]
    assert (gpu.state, gpu.detail) == ("absent", "none: models run on the CPU")


def test_a_port_that_is_taken_is_said_before_serving_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "_PORTS", (0, port))
        (ports,) = [finding for finding in examine() if finding.what == "ports"]
    assert ports.state == "absent"
    assert ports.detail.startswith(f"port {port} is taken by another program: name another one")
    (ports,) = [finding for finding in examine() if finding.what == "ports"]
    assert ports.state == "found"
    assert ports.detail.endswith(f", {port} are free")


def test_a_model_repository_is_what_serving_takes_it_for(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text("")
    (model,) = [found for found in examine(model=str(tmp_path)) if found.what == "model"]
    assert (model.state, model.detail) == (
        "found",
        f"{tmp_path}: a model repository of one, two",
    )
