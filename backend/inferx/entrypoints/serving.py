"""Serves in the foreground: one model, or all those of a model repository."""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from inferx.config import EngineConfig
from inferx.entrypoints.frontend import Frontend, Served
from inferx.entrypoints.settings import engine_config, option_name
from inferx.errors import ConfigError, ModelLoadError
from inferx.model_sources import (
    StoredModel,
    model_and_tokenizer,
    model_folders,
    models_in_repository,
    tokenizers_of,
)
from inferx.source import PACKAGE_PREFIX, ROOTS_VARIABLE, resolve
from inferx.triton.server import ServerError, TritonServer, find_server, write_model_repository

if TYPE_CHECKING:
    from inferx.entrypoints.openai.server import OpenAIServer

_PROGRESS_SECONDS = 10
_OPEN_FILES = 65_536  # each connection is one, here or in Triton


@dataclass(frozen=True)
class Endpoint:
    """Where the server listens; a port of 0 means a free one."""

    host: str
    http_port: int
    grpc_port: int
    metrics_port: int

    def options(self) -> dict[str, Any]:
        """As TritonServer names them."""
        return {
            "address": self.host,
            "http_port": self.http_port,
            "grpc_port": self.grpc_port,
            "metrics_port": self.metrics_port,
        }


class Timeouts(NamedTuple):
    """Seconds that a server has: as long as its slowest model may take, and a little more."""

    start: float
    exit: int

    @classmethod
    def of(cls, models: Iterable[EngineConfig]) -> Timeouts:
        """Of a repository without a model of ours: those of a model with the default settings."""
        configs = list(models) or [EngineConfig()]
        return cls(
            start=max(config.start_timeout for config in configs) + 60,
            exit=math.ceil(max(config.drain_timeout for config in configs)) + 5,
        )


def serve(
    settings: Mapping[str, Any],
    endpoint: Endpoint,
    *,
    name: str | None,
    tritonserver: str | None,
    frontend: Frontend | None,
) -> int:
    """Runs until the server ends, or a SIGINT, SIGTERM or SIGHUP ends it; an exit status.

    `frontend`: the OpenAI endpoint; None: without it. Raises InferxError when it does not come up.
    """
    config = engine_config(settings)
    if models := models_of_repository(config.model):
        refuse_settings_of_repository(settings, name)
        repository = Path(config.model).expanduser().absolute()
        stored = models_in_repository(repository)
        timeouts = Timeouts.of(model.config for model in stored.values())
        server = TritonServer(
            repository,
            installation=find_server(tritonserver),
            **endpoint.options(),
            exit_timeout=timeouts.exit,
            log=None,
        )
        served = served_from(stored) if frontend else {}
        return _run(server, models, timeouts.start, frontend, served)
    settings, roots = local_model(settings)
    name = name or served_name(config.model)
    installation = find_server(tritonserver)
    config = engine_config(settings)
    tokenizer = model_and_tokenizer(config, roots or [Path.cwd()])[1]
    served = {name: Served(config, tokenizer)}
    timeouts = Timeouts.of([config])
    with tempfile.TemporaryDirectory(prefix="inferx-models-") as folder:
        server = TritonServer(
            write_model_repository(folder, name, settings),
            installation=installation,
            **endpoint.options(),
            exit_timeout=timeouts.exit,
            log=None,
            environment=with_roots(os.environ, roots),
        )
        return _run(server, [name], timeouts.start, frontend, served)


def served_from(models: Mapping[str, StoredModel]) -> dict[str, Served]:
    """A repository's, by name. Raises ConfigError or ModelLoadError."""
    tokenizers = tokenizers_of(models)
    return {
        name: Served(_with_absolute_path(*model), tokenizers[name])
        for name, model in models.items()
    }


def _with_absolute_path(folder: Path, config: EngineConfig) -> EngineConfig:
    """Where its model lies in this folder."""
    path = folder / config.model
    if not config.model or not path.exists():
        return config
    return msgspec.structs.replace(config, model=str(path.absolute()))


def models_of_repository(model: str) -> list[str]:
    """The models of a folder that is a model repository; none where it is something else."""
    if not model:
        return []
    return [folder.name for folder in model_folders(Path(model).expanduser())]


def refuse_settings_of_repository(settings: Mapping[str, Any], name: str | None) -> None:
    """Raises ConfigError, as each model's settings stand in its own model.json."""
    given = [option_name(setting) for setting in settings if setting != "model"]
    given += ["--served-model-name"] if name else []
    if given:
        raise ConfigError(
            f"{settings['model']!r} is a model repository: leave out {', '.join(given)}, "
            "as the model.json of each model holds its settings and its folder is its name"
        )


def local_model(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[Path]]:
    """Settings whose local paths are absolute, and the folders that these paths may lie in.

    Raises ModelLoadError for a model that is not there, before anything is started.
    """
    found = dict(settings)
    roots: list[Path] = []
    for setting in ("model", "tokenizer"):
        named = found.get(setting)
        if not named:
            continue
        path = Path(named).expanduser()
        if named.startswith(PACKAGE_PREFIX):
            continue
        if path.exists():
            target = path.resolve()
            # a file keeps its name: what it links to may have another
            found[setting] = str(target if path.is_dir() else path.parent.resolve() / path.name)
            roots.append(target.parent)
        elif named.count("/") != 1 or named.startswith((".", "~", "/")):
            raise ModelLoadError(
                f"{setting} {named!r}: there is no such file or folder; "
                "a hub id has the form org/name, a model in a Python package package:NAME"
            )
    if found.get("model"):
        needs_weights = found.get("load_format") != "dummy"
        resolve(found["model"], roots=roots or [Path.cwd()], needs_weights=needs_weights)
    return found, roots


def with_roots(environment: Mapping[str, str], roots: list[Path]) -> dict[str, str]:
    """The environment in which models may be read from `roots` too."""
    listed = [*map(str, roots), environment.get(ROOTS_VARIABLE, "")]
    return {**environment, ROOTS_VARIABLE: os.pathsep.join(filter(None, listed))}


def served_name(model: str) -> str:
    """A name that Triton can serve the model under, made of its path, hub id or package."""
    last = model.removeprefix(PACKAGE_PREFIX).rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last.removesuffix(".gguf")).strip("-._")
    return name or "model"


def curl_line(http_url: str, name: str) -> str:
    body = (
        '{"text_input": "The capital of France is", '
        '"parameters": {"max_tokens": 16, "temperature": 0}}'
    )
    return f"curl -s {http_url}/v2/models/{name}/generate -d '{body}'"


def _run(
    server: TritonServer,
    names: list[str],
    start_timeout: float,
    frontend: Frontend | None,
    served: Mapping[str, Served],
) -> int:
    """`served`: the models of the endpoint."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    listener = frontend.listen(server.address) if frontend and served else None
    openai: OpenAIServer | None = None
    previous = {number: signal.signal(number, interrupt) for number in _ending_signals()}
    _allow_open_files()
    try:
        server.start(timeout=start_timeout, on_wait=_progress(", ".join(names)))
        if frontend and listener:
            openai = frontend.start(listener, server, served)
        _announce(server, names, openai)
        raise ServerError(server.watch())
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # where the terminal was closed
            _say("stopping: running requests may finish, a second interrupt ends them")
        return 0
    finally:
        try:
            if openai:
                openai.drain()
            server.stop()
        except KeyboardInterrupt:
            # However often somebody interrupts, nothing may be left, nor of this process's folders
            for number in (signal.SIGINT, *previous):
                signal.signal(number, signal.SIG_IGN)
            previous = {}
            server.kill()
        if openai:
            openai.join()  # what Triton has ended, the endpoint has told its clients
        elif listener:
            listener.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ending_signals() -> list[signal.Signals]:
    """Besides SIGINT. A closed terminal (SIGHUP) is one, unless nohup has said otherwise."""
    ignores = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM] if ignores else [signal.SIGTERM, signal.SIGHUP]


def _allow_open_files() -> None:
    """For this process and Triton, which inherits it: a login shell usually allows 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _progress(name: str) -> Callable[[float], None]:
    said = 0

    def on_wait(seconds: float) -> None:
        nonlocal said
        if seconds >= said + _PROGRESS_SECONDS:
            said = int(seconds)
            _say(f"loading {name}: {said} s")

    return on_wait


def _announce(server: TritonServer, names: list[str], openai: OpenAIServer | None) -> None:
    url = f"http://{server.reachable_host}:{openai.port}" if openai else ""
    shown = f"  OpenAI   {url}/v1\n  status   {url}/\n" if openai else ""
    _say(
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} ready\n"
        f"{shown}"
        f"  HTTP     http://{server.http_url}\n"
        f"  gRPC     {server.grpc_url}\n"
        f"  metrics  http://{server.metrics_url}/metrics\n"
        f"  {curl_line(f'http://{server.http_url}', names[0])}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
