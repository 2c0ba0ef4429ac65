"""What `inferx doctor` says of a machine where something is wrong."""

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
