"""The engine process: loads a model, then receives, steps and publishes until it is stopped.

`python -m inferx.engine.process DIRECTORY PARENT_PID`, started by EngineProcess (spawn.py) with a
pipe as its standard input. The parent alone ends it: interrupts of a terminal or a supervisor
reach the whole group of processes, while the parent still wants to finish what is running.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from inferx.config import EngineConfig
from inferx.engine.lifeline import die_with_parent
from inferx.engine.messages import (
    AbortRequests,
    AddRequests,
    EngineFailed,
    EngineInfo,
    EngineLoading,
    EngineReady,
    EngineRequest,
    EngineStats,
    FromEngine,
    Ping,
    Pong,
    RequestOutput,
    StartEngine,
    StepOutputs,
    StopEngine,
    ToEngine,
)
from inferx.engine.plan import Runner
from inferx.engine.wire import Wire, engine_wire
from inferx.errors import ModelLoadError, RequestError
from inferx.observe.memory import engine_memory
from inferx.observe.stages import Stages

if TYPE_CHECKING:
    from inferx.engine.core import EngineCore

logger = logging.getLogger(__name__)

LINGER = 1.0  # seconds for the last messages


class EngineLoop:
    """Drains what has arrived between two steps, and waits for it when there is nothing to do."""

    def __init__(self, core: EngineCore, device: str, wire: Wire[ToEngine, FromEngine]) -> None:
        self._core = core
        self._device = device
        self._wire = wire
        self._refused: list[RequestOutput] = []
        self._stopped = False

    def run(self) -> None:
        """Until StopEngine."""
        while not self._stopped:
            for message in self._wire.drain() if self._core.has_work else [self._wire.receive()]:
                self._handle(message)
            outputs, self._refused = self._refused, []
            if self._core.has_work:
                outputs += self._core.step()
            if outputs:
                self._wire.send(StepOutputs(outputs))

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, AddRequests):
            for request in message.requests:
                self._add(request)
        elif isinstance(message, AbortRequests):
            for uid in message.uids:
                self._core.abort(uid)
        elif isinstance(message, Ping):
            self._wire.send(Pong(message.number, self._stats()))
        elif isinstance(message, StopEngine):
            self._stopped = True

    def _stats(self) -> EngineStats:
        memory = engine_memory(self._device)
        return msgspec.structs.replace(
            self._core.stats(), memory_resident=memory.resident, memory_peak=memory.peak
        )

    def _add(self, request: EngineRequest) -> None:
        try:
            self._core.add(request)
        except RequestError as error:
            refused = RequestOutput(request.uid, [], error=(error.status, str(error)))
            self._refused.append(refused)


class LoadedRunner(Runner, Protocol):
    """A runner that knows what it has loaded."""

    @property
    def info(self) -> EngineInfo: ...


class LoadedEngine(NamedTuple):
    core: EngineCore
    runner: LoadedRunner
    info: EngineInfo


def load_engine(config: EngineConfig, stages: Stages | None = None) -> LoadedEngine:
    """`stages` gets what the start consists of. Raises ModelLoadError."""
    stages = Stages() if stages is None else stages
    from inferx.engine.core import EngineCore
    from inferx.engine.scheduler import Scheduler
    from inferx.engine.step_paths import StepPaths
    from inferx.memory.pool import PagePool

    if config.engine == "synthetic":
        runner = _synthetic_runner(config)
    else:
        runner = _model_runner(config, stages)
    info = runner.info
    scheduler = Scheduler(
        pool=PagePool(
            info.num_blocks, info.block_size, enable_prefix_caching=config.enable_prefix_caching
        ),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.step_budget(info.device),
        max_model_len=info.max_model_len,
        eos_token_ids=info.eos_token_ids,
        seed=config.seed,
    )
    core = EngineCore(
        scheduler,
        runner,
        overlap=config.enable_async_batch,
        paths=StepPaths.of(config, info.sparse_path),
    )
    return LoadedEngine(core, runner, info)


def _model_runner(config: EngineConfig, stages: Stages) -> LoadedRunner:
    with stages("imports"):
        from inferx.model.runners import load_runner
        from inferx.source import source_at

    source = source_at(Path(config.model), needs_weights=config.needs_weights)
    return load_runner(config, source, stages)


def _synthetic_runner(config: EngineConfig) -> LoadedRunner:
    from inferx.engine.synthetic import SyntheticRunner

    named = config.tokenizer or config.model
    if not named:
        return SyntheticRunner(config, tokenizer=None)
    from inferx.source import source_at
    from inferx.text.tokenizer import Tokenizer

    return SyntheticRunner(config, Tokenizer.from_source(source_at(Path(named))))


def serve(wire: Wire[ToEngine, FromEngine]) -> None:
    """One engine's life, from StartEngine to StopEngine."""
    start = wire.receive()
    assert isinstance(start, StartEngine)
    wire.send(EngineLoading())
    try:
        engine = load_engine(start.config)
    except Exception as error:
        wire.send(EngineFailed(_load_failure(start.config, error)))
        wire.receive()  # the parent has read the sentence when it says StopEngine or ends us
        return
    # What loading made stays: a full collection would walk it all, and every request would wait.
    gc.collect()
    gc.freeze()
    wire.send(EngineReady(engine.info))
    try:
        EngineLoop(engine.core, engine.info.device, wire).run()
    finally:
        engine.runner.close()


def _load_failure(config: EngineConfig, error: Exception) -> str:
    if isinstance(error, ModelLoadError):
        return str(error)
    logger.exception("loading the model failed")
    name = Path(config.model).name or config.engine
    return (
        f"model {name!r}: loading it failed with an unexpected {type(error).__name__}; "
        "the log of the engine process holds the traceback"
    )


def main() -> None:
    directory, parent_pid = sys.argv[1:]
    die_with_parent(int(parent_pid))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"inferx engine[{os.getpid()}] %(levelname)s %(name)s: %(message)s",
    )
    wire = engine_wire(directory)
    status = 0
    try:
        serve(wire)
    except Exception:
        logger.exception("the engine process ends: a step failed")
        status = 1
    wire.close(LINGER)
    # Nothing of a model's libraries may keep the process, and the GPU's memory with it, from going.
    os._exit(status)


if __name__ == "__main__":
    main()
