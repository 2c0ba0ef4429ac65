"""TritonServer: a real tritonserver as a child process."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from inferx.errors import ModelLoadError
from inferx.triton.installation import ServerError, ServerInstallation, find_server
from inferx.triton.ports import PortTaken, choose_ports
from inferx.triton.repository import models_of, write_model_repository
from inferx.triton.server_log import last_words, load_failure, passed_over, taken_port
from inferx.triton.server_process import ServerProcess
from inferx.triton.stubs import stubs_of

__all__ = ["ServerError", "TritonServer", "find_server", "write_model_repository"]

_POLL_SECONDS = 0.05
_START_TRIES = 3  # another process may take a free port before tritonserver does
_PING_INTERVAL_MS = 1000
_GRACE_SECONDS = 5.0  # beyond the server's own exit timeout, then SIGKILL


class TritonServer:
    """Starts tritonserver on a model repository, waits until it is ready, and ends it.

    A port of 0 means a free one. `explicit` selects Triton's explicit model control and names
    the models to load at the start; None loads every model. `workdir` keeps the log and the
    backend folder after the end; without it they lie in a temporary folder. `log` of None lets
    the server's log pass to this process's standard error. Unless `detached`, the server ends
    when the thread that started it does.
    """

    def __init__(
        self,
        repository: Path | str,
        *,
        installation: ServerInstallation | None = None,
        address: str = "127.0.0.1",
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        explicit: Sequence[str] | None = None,
        exit_timeout: int = 30,
        workdir: Path | None = None,
        log: Path | str | None = "tritonserver.log",
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        detached: bool = False,
    ) -> None:
        self.repository = Path(repository).absolute()
        self.installation = installation or find_server()
        self.address = address
        self.exit_timeout = exit_timeout
        self._wanted_ports = (http_port, grpc_port, metrics_port)
        self._explicit = explicit
        self._environment = environment
        self._arguments = list(arguments)
        self._detached = detached
        self._temporary = workdir is None
        self.workdir = workdir
        self._log = log
        self._process: ServerProcess | None = None
        self._expected: set[str] = set()  # models
        self.http_port = self.grpc_port = self.metrics_port = 0

    @property
    def http_url(self) -> str:
        """host:port, as tritonclient wants it."""
        return f"{self.reachable_host}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{self.reachable_host}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"{self.reachable_host}:{self.metrics_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and not self._process.has_ended(0)

    @property
    def log_path(self) -> Path | None:
        """None: the log goes to standard error."""
        if self._log is None or self.workdir is None:
            return None
        return self.workdir / self._log

    def log_text(self) -> str:
        path = self.log_path
        if path is None or not path.exists():
            return ""
        return path.read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(
        self, timeout: float = 600.0, on_wait: Callable[[float], object] | None = None
    ) -> None:
        """Returns when all models are ready; `on_wait` hears the seconds waited so far.

        Raises ModelLoadError with the sentence of the model that failed, or ServerError; the
        server is then gone.
        """
        assert self._process is None, "the server was started already"
        self.installation.check()
        models = models_of(self.repository)
        self._expected = set(models if self._explicit is None else self._explicit)
        try:
            backends = self._lay_out_backends()
            for tries_left in reversed(range(_START_TRIES)):
                self._spawn(backends)
                try:
                    self._wait_until_ready(timeout, on_wait)
                    return
                except PortTaken as error:
                    if error.port in self._wanted_ports or not tries_left:
                        raise
        except BaseException:
            self.stop()
            raise

    def wait(self) -> int:
        """Blocks until the server ends by itself; its exit status."""
        assert self._process is not None, "the server was not started"
        self._process.has_ended(None)
        return self._process.reap()

    def watch(self) -> str:
        """Blocks until the server, or a process in which it runs a model, ends by itself; says
        which. The server is then gone: it would leave that model's requests without an answer.
        """
        assert self._process is not None, "the server was not started"
        self._process.wait_with(stubs_of(self._process.pid))
        if not self._process.has_ended(_POLL_SECONDS) and self._is_live():
            self.kill()
            return (
                "a process in which Triton runs a model ended by itself (memory ran out, if nobody "
                "killed it)"
            )
        return f"tritonserver ended by itself with status {self.wait()}"

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)

    def kill(self) -> None:
        """SIGKILL, without a chance for running requests."""
        self.signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL once the exit timeout has passed; nothing of it is left running."""
        if self._process is not None:
            self._process.stop(self.exit_timeout + _GRACE_SECONDS)
        if self._temporary and self.workdir is not None:
            shutil.rmtree(self.workdir, ignore_errors=True)
            self.workdir = None

    @property
    def reachable_host(self) -> str:
        """Under which this machine reaches what listens on `address`."""
        return "127.0.0.1" if self.address == "0.0.0.0" else self.address

    def _lay_out_backends(self) -> Path:
        """The folder for --backend-directory. Raises ServerError, as on a full disk."""
        try:
            if self.workdir is None:
                self.workdir = Path(tempfile.mkdtemp(prefix="inferx-server-"))
            return self.installation.backend_directory(self.workdir / "backends")
        except OSError as error:
            raise ServerError(
                f"the server's backends cannot be laid out in {self.workdir or 'a new folder'} "
                f"({error.strerror}): make room there, or name another place in TMPDIR"
            ) from None

    def _spawn(self, backends: Path) -> None:
        self.http_port, self.grpc_port, self.metrics_port = choose_ports(
            self.address, self._wanted_ports
        )
        self._process = ServerProcess(
            [str(self.installation.binary), *self._command_line(backends)],
            environment=self.installation.environment(self._environment),
            log=self.log_path,
            detached=self._detached,
        )

    def _command_line(self, backends: Path) -> list[str]:
        options = [
            f"--model-repository={self.repository}",
            f"--backend-directory={backends}",
            # A model that fails is reported through the repository index, in its own words.
            "--exit-on-error=false",
            f"--exit-timeout-secs={self.exit_timeout}",
            # The caller's trace becomes a request parameter; `generate` leaves headers out.
            "--grpc-header-forward-pattern=traceparent",
            # Clients may ask often whether a server is there that says nothing: a long prefill.
            f"--grpc-http2-min-recv-ping-interval-without-data={_PING_INTERVAL_MS}",
        ]
        for service in ("http", "grpc", "metrics"):
            options.append(f"--{service}-address={self.address}")
            options.append(f"--{service}-port={getattr(self, f'{service}_port')}")
        if self._explicit is not None:
            options.append("--model-control-mode=explicit")
            options += [f"--load-model={name}" for name in self._explicit]
        return options + self._arguments

    def _wait_until_ready(self, timeout: float, on_wait: Callable[[float], object] | None) -> None:
        start = time.monotonic()
        while True:
            self._raise_if_ended()
            if self._is_ready():
                return
            waited = time.monotonic() - start
            if waited > timeout:
                raise ServerError(
                    f"tritonserver was not ready after {timeout:g} s{last_words(self.log_text())}"
                )
            if on_wait:
                on_wait(waited)
            time.sleep(_POLL_SECONDS)

    def _is_ready(self) -> bool:
        """Raises ModelLoadError when a model has failed."""
        try:
            index = json.loads(self._http("POST", "/v2/repository/index")[1])
            for model in index:
                if model.get("state") == "UNAVAILABLE" and model.get("reason") != "unloaded":
                    raise ModelLoadError(load_failure(model["name"], model.get("reason", "")))
            # Triton answers once it has gone through all of them; some it lists by name alone
            if missing := self._expected - {model["name"] for model in index if "state" in model}:
                raise ModelLoadError(passed_over(min(missing)))
            if self._http("GET", "/v2/health/ready")[0] != 200:
                return False
            # The metrics service is the last that Triton starts.
            socket.create_connection((self.reachable_host, self.metrics_port), timeout=5).close()
            return True
        except (OSError, http.client.HTTPException):
            return False

    def _is_live(self) -> bool:
        """Not so once it shuts down, which ends the models first."""
        try:
            return self._http("GET", "/v2/health/live")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _http(self, method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.reachable_host, self.http_port, timeout=5)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _raise_if_ended(self) -> None:
        assert self._process is not None
        if not self._process.has_ended(0):
            return
        status, log = self._process.reap(), self.log_text()
        port = taken_port(log)
        if port is not None:
            raise PortTaken(port)
        raise ServerError(f"tritonserver ended with status {status}{last_words(log)}")
