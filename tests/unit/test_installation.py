"""Which tritonserver is taken, and what it is given."""

import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from inferx.triton.installation import (
    STUB,
    ServerError,
    ServerInstallation,
    find_libpython,
    find_server,
    python_version,
)
from inferx.triton.server import TritonServer


def installation(home: Path, python: str = python_version()) -> Path:
    """A folder like /opt/tritonserver; returns its program."""
    program = home / "bin" / "tritonserver"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    backend = home / "backends" / "python"
    backend.mkdir(parents=True)
    (backend / STUB).write_bytes(b"\x7fELF\0libpython" + python.encode() + b".so.1.0\0")
    (backend / "libtriton_python.so").write_bytes(b"library")
    (backend / "triton_python_backend_utils.py").write_text("")
    return program


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRITONSERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_the_explicit_one_comes_before_the_variable_before_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {name: installation(tmp_path / name) for name in ("flag", "variable", "path")}
    monkeypatch.setenv("PATH", str(programs["path"].parent))
    assert find_server().binary == programs["path"]
    monkeypatch.setenv("TRITONSERVER", str(programs["variable"]))
    assert find_server().binary == programs["variable"]
    assert find_server(str(programs["flag"])).binary == programs["flag"]


def test_a_folder_names_the_server_in_its_bin(tmp_path: Path) -> None:
    program = installation(tmp_path / "triton")
    found = find_server(str(tmp_path / "triton"))
    assert (found.binary, found.origin) == (program, "--tritonserver")


def test_an_explicit_server_that_is_not_there_is_an_error_and_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"--tritonserver is '.*nowhere': there is no"):
        find_server(str(tmp_path / "nowhere"))


def test_a_server_without_the_python_backend_is_refused(tmp_path: Path) -> None:
    program = installation(tmp_path / "triton")
    (tmp_path / "triton" / "backends" / "python" / STUB).unlink()
    with pytest.raises(ServerError, match="has no Python backend"):
        find_server(str(program))


def test_a_server_for_another_python_is_refused_with_both_versions(tmp_path: Path) -> None:
    found = find_server(str(installation(tmp_path / "triton", python="3.7")))
    assert found.stub_python() == "3.7"
    with pytest.raises(ServerError, match=rf"Python 3.7 models.*is Python {python_version()}"):
        found.check()


def test_the_python_backend_and_ours_lie_side_by_side(tmp_path: Path) -> None:
    found = find_server(str(installation(tmp_path / "triton")))
    (found.backends / "onnxruntime").mkdir()
    made = found.backend_directory(tmp_path / "made")
    assert sorted(path.name for path in made.iterdir()) == ["inferx", "onnxruntime", "python"]
    assert (made / "python" / STUB).read_bytes() == found.stub.read_bytes()
    # Triton refuses a library that is a link out of its backend's folder.
    assert not (made / "python" / "libtriton_python.so").is_symlink()
    assert "inferx.triton.model" in (made / "inferx" / "model.py").read_text()


def test_a_server_that_has_our_backend_is_left_as_it_is(tmp_path: Path) -> None:
    found = find_server(str(installation(tmp_path / "triton")))
    ours = found.backends / "inferx"
    ours.mkdir()
    (ours / "model.py").write_text("")
    assert found.backend_directory(tmp_path / "made") == found.backends
    assert not (tmp_path / "made").exists()


def test_the_environment_leads_to_this_python(tmp_path: Path) -> None:
    found = find_server(str(installation(tmp_path / "triton")))
    given = {"PATH": "/bin", "LD_LIBRARY_PATH": "/theirs", "PYTHONHOME": "/wrong", "OTHER": "1"}
    made = found.environment(given)
    libpython = find_libpython()
    assert libpython is not None
    assert made["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/bin"]
    assert made["LD_LIBRARY_PATH"].split(os.pathsep) == [
        str(libpython.parent),
        str(tmp_path / "triton" / "lib"),
        "/theirs",
    ]
    assert "PYTHONHOME" not in made
    assert made["OTHER"] == "1"


def test_the_embedded_server_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/opt/tritonserver/bin/tritonserver").exists():
        pytest.skip("this machine has /opt/tritonserver, which comes first")
    found = find_server()
    assert isinstance(found, ServerInstallation)
    assert found.origin == "embedded"
    assert found.stub_python() == python_version()
    found.check()


def test_the_entry_that_is_shipped_is_the_one_that_is_written(tmp_path: Path) -> None:
    shipped = (Path(__file__).parents[2] / "backend" / "model.py").read_text()
    found = find_server(str(installation(tmp_path / "triton")))
    made = found.backend_directory(tmp_path / "made") / "inferx" / "model.py"
    assert "from inferx.triton.model import TritonPythonModel" in shipped
    assert "from inferx.triton.model import TritonPythonModel" in made.read_text()


def test_a_server_whose_files_cannot_be_laid_out_is_one_sentence_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_server(str(installation(tmp_path / "triton")))
    (found.backends / "python" / "libtriton_python.so").unlink()
    monkeypatch.setattr(ServerInstallation, "check", lambda self: None)
    places = tmp_path / "temporary"
    places.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    server = TritonServer(tmp_path / "models", installation=found)
    with pytest.raises(ServerError, match=r"laid out in .*inferx-server-.* \(No such file"):
        server.start()
    assert list(places.iterdir()) == []
