"""Memory over a start and a load: what each stage took, and the pictures of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from inferx.config import EngineConfig
from inferx.entrypoints.memory_report import Load, measure
from inferx.errors import ConfigError
from inferx.observe.memory import Memory
from inferx.observe.memory_curve import Point, StageMemory, of_stages
from inferx.observe.memory_picture import check_pictures, draw
from inferx.observe.stages import Stage
from tiny_models import make_tiny_model


def points(*memory: tuple[int, int]) -> list[Point]:
    """One a second, of resident and peak."""
    return [Point(float(at), Memory(*both)) for at, both in enumerate(memory)]


def test_a_stage_has_its_own_peak_and_what_is_held_at_its_end() -> None:
    curve = points((1, 1), (5, 5), (3, 9), (4, 9), (2, 9))
    stages = [Stage("weights", 0.0, 1.5), Stage("load", 2.0, 3.5)]
    assert of_stages(curve, stages) == [
        StageMemory("weights", 1.5, 9, 3),  # 9 between two points
        StageMemory("load", 1.5, 4, 2),  # the peak was before
    ]


_TOUCHES = """
from inferx.observe.memory import engine_memory
found = [engine_memory("cpu")]
block = bytearray(b"x") * (64 << 20)
found.append(engine_memory("cpu"))
del block
found.append(engine_memory("cpu"))
print(*(number for memory in found for number in memory))
"""


def test_the_process_holds_what_it_touches() -> None:
    """In a process of its own, as other tests' threads free memory meanwhile."""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", _TOUCHES], env=paths, capture_output=True, check=True, timeout=60
    )
    numbers = [int(number) for number in ran.stdout.split()]
    before, with_block, after = (Memory(*numbers[at : at + 2]) for at in (0, 2, 4))
    assert with_block.resident - before.resident > 60 << 20
    assert with_block.resident - after.resident > 60 << 20
    assert after.peak - after.resident > 60 << 20


def test_a_model_is_measured_from_its_imports_to_the_end_of_a_load(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    config = EngineConfig(model=str(tmp_path), device="cpu", dtype="float32")
    found = measure(config, Load(requests=3, prompt_tokens=20, output_tokens=4))
    names = ["before", "imports", "config", "weights", "kv_cache", "warm_up", "load"]
    assert [row.name for row in found.rows] == names
    assert found.device == "cpu"
    assert all(row.peak >= row.resident > 0 for row in found.rows)
    assert 0 < found.ratio <= 1
    assert found.points[0].at <= found.stages[0].begin
    assert found.stages[-1].end <= found.points[-1].at


def test_the_curves_are_drawn_as_png_and_svg(tmp_path: Path) -> None:
    paths = [tmp_path / "memory.png", tmp_path / "memory.svg"]
    check_pictures(paths)
    draw(points((1, 1), (3, 4), (2, 4)), [Stage("weights", 0.0, 1.5)], "tiny", paths)
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in paths[1].read_text()


def test_what_cannot_be_drawn_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"^memory.gif: a picture's name ends in .png or .svg$"):
        check_pictures([Path("memory.gif")])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'inferx\[report\]'"):
        check_pictures([tmp_path / "memory.png"])
    check_pictures([])
