"""`inferx memory`: what a model takes of memory while it starts, and under a short load.

The engine runs in this process, so that its allocator can be asked; on a CPU the figures contain
the command itself, which the first line of the table shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferx.config import EngineConfig
from inferx.engine.core import EngineCore
from inferx.engine.messages import EngineInfo, EngineRequest
from inferx.engine.process import load_engine
from inferx.engine.sampling import SamplingParams
from inferx.entrypoints.serving import local_model
from inferx.entrypoints.settings import engine_config
from inferx.errors import ConfigError
from inferx.observe.memory import Memory, engine_memory
from inferx.observe.memory_curve import MemoryCurve, Point, StageMemory, of_stages
from inferx.observe.memory_picture import check_pictures, draw
from inferx.observe.stages import Stage, Stages
from inferx.source import resolve

_MIB = 1 << 20


class Load(NamedTuple):
    requests: int
    prompt_tokens: int
    output_tokens: int


class MemoryReport(NamedTuple):
    device: str
    points: list[Point]
    stages: list[Stage]

    @property
    def rows(self) -> list[StageMemory]:
        first = self.points[0].memory
        return [
            StageMemory("before", 0.0, first.peak, first.resident),
            *of_stages(self.points, self.stages),
        ]

    @property
    def end(self) -> Memory:
        return self.points[-1].memory

    @property
    def ratio(self) -> float:
        """What is held in the end, of the most that was."""
        return self.end.resident / self.end.peak


def report(settings: Mapping[str, Any], load: Load, pictures: Sequence[Path]) -> None:
    """Measures, prints, and draws. Raises ConfigError or ModelLoadError."""
    check_pictures(pictures)
    settings, roots = local_model(settings)
    config = engine_config(settings)
    if config.engine == "synthetic":
        raise ConfigError("the synthetic engine has no model, whose memory could be measured")
    source = resolve(config.model, roots=roots or [Path.cwd()], needs_weights=config.needs_weights)
    config = msgspec.structs.replace(config, model=str(source.path))
    with Console(stderr=True).status(f"measuring {escape(source.name)}"):
        found = measure(config, load)
    Console(highlight=False).print(_table(found))
    print(
        f"peak {_mib(found.end.peak)} MiB, resident in the end {_mib(found.end.resident)} MiB: "
        f"ratio {found.ratio:.2f}"
    )
    if pictures:
        kind = "GPU memory" if found.device == "cuda" else "resident set"
        draw(found.points, found.stages, f"{source.name}: {kind}", pictures)
        print(f"wrote {', '.join(map(str, pictures))}")


def measure(config: EngineConfig, load: Load) -> MemoryReport:
    """Raises ModelLoadError, or InvalidArgument for a load that the model cannot take."""
    stages = Stages()
    host = MemoryCurve(partial(engine_memory, "cpu"))
    gpu = MemoryCurve(partial(engine_memory, "cuda"))
    with host, gpu:
        engine = load_engine(config, stages)
        try:
            with stages("load"):
                _work(engine.core, engine.info, load)
        finally:
            engine.runner.close()
    device = engine.info.device
    return MemoryReport(device, (gpu if device == "cuda" else host).points, stages.ended)


def _work(core: EngineCore, info: EngineInfo, load: Load) -> None:
    """All requests at once, each with a prompt of its own."""
    draws = Random(0)
    params = SamplingParams(max_tokens=load.output_tokens, ignore_eos=True)
    for uid in range(load.requests):
        prompt = [draws.randrange(info.vocab_size) for _ in range(load.prompt_tokens)]
        core.add(EngineRequest(uid, prompt, params))
    while core.has_work:
        core.step()


def _table(found: MemoryReport) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    for name in ("seconds", "peak MiB", "resident MiB"):
        table.add_column(name, justify="right")
    for row in found.rows:
        table.add_row(row.name, f"{row.seconds:.2f}", _mib(row.peak), _mib(row.resident))
    return table


def _mib(count: int) -> str:
    return f"{count / _MIB:,.0f}"
