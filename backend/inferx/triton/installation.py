"""Finds a tritonserver and says what it needs to run models in this Python environment.

Two kinds exist: NVIDIA's own (its container, or a build), and the one that the wheel
nvidia-pytriton carries, whose Python backend comes without the stub for a given Python beside it.
Nothing else in the project depends on which it is.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from inferx.errors import InferxError

STUB = "triton_python_backend_stub"
_PYTHON_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
# What Triton loads for `backend: "inferx"`; the same as backend/model.py.
BACKEND_ENTRY = (
    "from inferx.triton.model import TritonPythonModel\n\n__all__ = ['TritonPythonModel']\n"
)


class ServerError(InferxError):
    """No usable tritonserver, or it did not come up."""


@dataclass(frozen=True)
class ServerInstallation:
    """A tritonserver and where its parts are."""

    binary: Path
    origin: (
        str  # how it was found: --tritonserver, $TRITONSERVER, PATH, /opt/tritonserver, embedded
    )
    backends: Path  # the folder whose sub-folder `python` is Triton's Python backend
    stub: Path  # the program that runs a Python model
    libraries: tuple[Path, ...]  # folders that the loader has to search

    def stub_python(self) -> str | None:
        """The Python that the stub is linked with, "3.12"; None where it does not say."""
        found = re.search(rb"libpython(3\.\d+)\.so", self.stub.read_bytes())
        return found.group(1).decode() if found else None

    def check(self) -> None:
        """Raises ServerError where the stub cannot run models in this environment."""
        here = python_version()
        stub = self.stub_python()
        if stub is not None and stub != here:
            raise ServerError(
                f"the tritonserver found by {self.origin} runs Python {stub} models, "
                f"but this environment is Python {here}: install InferX with Python {stub}"
            )
        if find_libpython() is None:
            raise ServerError(missing_libpython())
        if self.origin == "embedded" and not _numpy_is_old():
            raise ServerError(
                "the embedded tritonserver needs numpy below 2: pip install 'numpy<2'"
            )

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment in which the server and its stubs have to start.

        The stub takes the first python3 on PATH for its own, and ignores PYTHONPATH.
        """
        env = dict(os.environ if base is None else base)
        env.pop("PYTHONHOME", None)
        libpython = find_libpython()
        folders = [libpython.parent] if libpython else []
        folders += self.libraries
        env["LD_LIBRARY_PATH"] = _joined(map(str, folders), env.get("LD_LIBRARY_PATH"))
        env["PATH"] = _joined([str(Path(sys.executable).parent)], env.get("PATH"))
        return env

    def backend_directory(self, folder: Path) -> Path:
        """The value of --backend-directory: Triton's Python backend and InferX side by side.

        Where the installation holds InferX already (our container image) that is its own folder;
        otherwise `folder` is filled. Triton refuses a library that is a link out of its backend's
        folder, so files are copied; a whole folder may be a link.
        """
        if (self.backends / "inferx" / "model.py").is_file():
            return self.backends
        folder.mkdir(parents=True, exist_ok=True)
        for backend in self.backends.iterdir():
            if backend.is_dir() and backend.name not in ("inferx", "python"):
                _link(folder / backend.name, backend)
        python = folder / "python"
        python.mkdir(exist_ok=True)
        for name in _PYTHON_BACKEND_FILES:
            shutil.copy(self.backends / "python" / name, python / name)
        shutil.copy(self.stub, python / STUB)
        entry = folder / "inferx" / "model.py"
        entry.parent.mkdir(exist_ok=True)
        entry.write_text(BACKEND_ENTRY, encoding="utf-8")
        return folder


def find_server(explicit: str | None = None) -> ServerInstallation:
    """In this order: `explicit`, $TRITONSERVER, PATH, /opt/tritonserver, the embedded one.

    `explicit` and $TRITONSERVER name the program or the folder that holds bin/tritonserver.
    Raises ServerError.
    """
    for given, origin in (
        (explicit, "--tritonserver"),
        (os.environ.get("TRITONSERVER"), "$TRITONSERVER"),
    ):
        if given:
            return _installed(_program(Path(given).expanduser(), origin), origin)
    on_path = shutil.which("tritonserver")
    if on_path:
        return _installed(Path(on_path), "PATH")
    container = Path("/opt/tritonserver/bin/tritonserver")
    if container.is_file():
        return _installed(container, "/opt/tritonserver")
    embedded = _embedded()
    if embedded:
        return embedded
    raise ServerError(
        "no tritonserver found: install the embedded one with "
        "'pip install --no-deps nvidia-pytriton==0.7.0', or name yours with --tritonserver"
    )


def find_libpython() -> Path | None:
    """The shared library of the running Python; the stub is linked with it."""
    name = libpython_name()
    folders = [
        sysconfig.get_config_var("LIBDIR"),
        Path(sys.base_prefix) / "lib",
        Path(sys.base_prefix) / "lib64",
    ]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        folders += [Path("/usr/lib") / multiarch, Path("/lib") / multiarch]
    for folder in filter(None, folders):
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    return None


def libpython_name() -> str:
    return f"libpython{python_version()}.so.1.0"


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def missing_libpython() -> str:
    """The sentence for a Python without its shared library."""
    return (
        f"{libpython_name()} is missing, which Triton's Python backend needs: on Debian and Ubuntu "
        f"'apt install libpython{python_version()}', with pyenv build Python with "
        "PYTHON_CONFIGURE_OPTS=--enable-shared"
    )


def _program(given: Path, origin: str) -> Path:
    for candidate in (given, given / "bin" / "tritonserver"):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise ServerError(
        f"{origin} is {str(given)!r}: there is no tritonserver program, "
        "nor a folder with bin/tritonserver"
    )


def _installed(binary: Path, origin: str) -> ServerInstallation:
    prefix = binary.resolve().parent.parent
    backends = prefix / "backends"
    stub = backends / "python" / STUB
    if not stub.is_file():
        raise ServerError(
            f"the tritonserver found by {origin} has no Python backend "
            f"(backends/python/{STUB} beside its bin folder): use a Triton with it"
        )
    return ServerInstallation(binary, origin, backends, stub, (prefix / "lib",))


def _embedded() -> ServerInstallation | None:
    # Not imported: importing pytriton pulls in packages that only its own server needs.
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(spec.submodule_search_locations[0])
    home = package / "tritonserver"
    stub = home / "python_backend_stubs" / python_version() / STUB
    if not stub.is_file():
        raise ServerError(
            f"the embedded tritonserver has no stub for Python {python_version()}: "
            "use Python 3.10, 3.11 or 3.12"
        )
    return ServerInstallation(
        home / "bin" / "tritonserver",
        "embedded",
        home / "backends",
        stub,
        (package.parent / "nvidia_pytriton.libs",),
    )


def _numpy_is_old() -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return int(version("numpy").partition(".")[0]) < 2
    except PackageNotFoundError:
        return False


def _joined(first: Iterable[str], rest: str | None) -> str:
    return os.pathsep.join([*first, *([rest] if rest else [])])


def _link(link: Path, target: Path) -> None:
    if not link.exists():
        link.symlink_to(target, target_is_directory=True)
