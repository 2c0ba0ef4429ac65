"""TritonServer runs a real tritonserver; its models here are a few lines of Python."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from inferx.errors import ModelLoadError
from inferx.triton.server import ServerError, TritonServer
from inferx.triton.shared_memory import regions_of

ECHO = """
import sys
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def initialize(self, args):
        if args["model_name"] == "broken":
            raise pb_utils.TritonModelException("model.json is missing: it names the model")
        pb_utils.Logger.log_info("python is " + sys.executable)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def add_model(repository: Path, name: str) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(ECHO)
    (version.parent / "config.pbtxt").write_text(
        'backend: "python"\ninstance_group [{ kind: KIND_MODEL }]\n'
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_model(tmp_path / "models", "echo")
    return tmp_path / "models"


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_ready_server_listens_on_localhost_and_leaves_nothing_after_stop(repository: Path) -> None:
    waited: list[float] = []
    server = TritonServer(repository, exit_timeout=5)
    server.start(on_wait=waited.append)
    pid, workdir = server.pid, server.workdir
    assert waited == sorted(waited)
    assert server.is_running
    for url in (server.http_url, server.grpc_url, server.metrics_url):
        host, port = url.split(":")
        assert host == "127.0.0.1"
        socket.create_connection((host, int(port)), timeout=5).close()
    assert f"python is {Path(sys.executable).parent}" in server.log_text()
    server.stop()
    assert gone(pid)
    assert not workdir.exists()


@pytest.mark.parametrize("how", ["killed", "crashed", "interrupted while it loads"])
def test_a_server_that_ends_out_of_order_leaves_no_shared_memory(
    repository: Path, how: str
) -> None:
    class Interrupt(Exception):
        pass

    regions: set[Path] = set()

    def interrupt(_: float) -> None:
        if how == "interrupted while it loads":
            regions.update(regions_of(server.pid))
            if regions:
                raise Interrupt

    server = TritonServer(repository)
    with contextlib.suppress(Interrupt):
        server.start(on_wait=interrupt)
        regions.update(regions_of(server.pid))
        assert all(region.exists() for region in regions)
        if how == "crashed":
            watch = os.pidfd_open(server.pid)
            os.kill(server.pid, signal.SIGSEGV)
            select.select([watch], [], [])
            os.close(watch)
            server.stop()
        else:
            server.kill()
    assert len(regions) == 1
    assert not any(region.exists() for region in regions)


def test_a_model_that_fails_is_reported_in_its_own_sentence(repository: Path) -> None:
    add_model(repository, "broken")
    server = TritonServer(repository)
    with pytest.raises(ModelLoadError) as error:
        server.start()
    assert str(error.value) == (
        "model 'broken' did not load: model.json is missing: it names the model"
    )
    assert not server.is_running


@pytest.mark.parametrize(
    "line",
    ["garbage {", 'name: "other"', "version_policy { specific { versions: [7] } }"],
    ids=["unreadable", "of another name", "of another version"],
)
def test_a_model_that_triton_passes_over_is_named(repository: Path, line: str) -> None:
    add_model(repository, "ignored")
    with (repository / "ignored" / "config.pbtxt").open("a") as config:
        config.write(f"{line}\n")
    server = TritonServer(repository)
    with pytest.raises(ModelLoadError, match="model 'ignored' did not load: Triton passes it over"):
        server.start(timeout=30)
    assert not server.is_running


@pytest.mark.parametrize("name", ["a model", "a;b", "it's", "$(id)"])
@pytest.mark.parametrize("which", ["model", "repository"])
def test_a_path_in_which_triton_starts_no_models_is_refused_at_once(
    tmp_path: Path, name: str, which: str
) -> None:
    repository = tmp_path / name if which == "repository" else tmp_path / "models"
    model = name if which == "model" else "echo"
    add_model(repository, model)
    with pytest.raises(ServerError, match="in which Triton's Python backend starts no models") as e:
        TritonServer(repository).start()
    assert str(e.value).startswith(f"the model repository has the path {str(repository / model)!r}")


def test_explicit_control_loads_only_the_named_models(repository: Path) -> None:
    add_model(repository, "broken")
    with TritonServer(repository, explicit=["echo"]) as server:
        assert server.is_running
        assert "successfully loaded 'echo'" in server.log_text()


@pytest.mark.parametrize("services", [("http", "grpc"), ("grpc", "metrics"), ("http", "metrics")])
def test_one_port_for_two_services_is_refused(repository: Path, services: tuple[str, str]) -> None:
    server = TritonServer(repository, **{f"{service}_port": 18555 for service in services})
    with pytest.raises(ServerError, match=r"18555.*: each needs one of its own"):
        server.start()
    assert not server.is_running


@pytest.mark.parametrize("service", ["http", "grpc", "metrics"])
def test_a_taken_port_is_named(repository: Path, service: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = TritonServer(repository, **{f"{service}_port": port})
        with pytest.raises(
            ServerError, match=f"port {port} is taken by another program: name another"
        ):
            server.start()


def test_a_wrong_argument_ends_in_the_server_s_last_words(repository: Path) -> None:
    server = TritonServer(repository, arguments=["--no-such-option"])
    with pytest.raises(ServerError, match="tritonserver ended with status 1: "):
        server.start()


def test_the_server_ends_with_the_program_that_started_it(repository: Path) -> None:
    script = textwrap.dedent(
        f"""
        import signal
        from inferx.triton.server import TritonServer
        from pathlib import Path
        server = TritonServer({str(repository)!r}, workdir=Path({str(repository.parent)!r}))
        server.start()
        print(server.pid, flush=True)
        signal.pause()
        """
    )
    program = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    pid = int(program.stdout.readline())
    watch = os.pidfd_open(pid)
    program.send_signal(signal.SIGKILL)
    program.wait()
    poll = select.poll()
    poll.register(watch)
    assert poll.poll(20_000), "the server outlived its starter"
    os.close(watch)
