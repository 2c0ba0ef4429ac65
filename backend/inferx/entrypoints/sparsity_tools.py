"""What the sparsity commands begin with: a Llama-like model, a text, a progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from inferx.entrypoints.serving import local_model
from inferx.entrypoints.settings import engine_config
from inferx.errors import SparsityError
from inferx.model.hf_config import FUSED_ARCHITECTURES
from inferx.model.loading import LoadedModel, Stages
from inferx.model.registry import load_config
from inferx.perplexity import python_documentation
from inferx.source import ModelSource, load_error, resolve
from inferx.sparse import measuring
from inferx.sparse.windows import Text, WindowedModel
from inferx.text.tokenizer import Tokenizer

_console = Console(stderr=True, highlight=False)


class Loaded(NamedTuple):
    source: ModelSource
    windowed: WindowedModel
    text: Text

    @contextmanager
    def progress(self) -> Iterator[measuring.Progress]:
        """A bar for each kind of work on a terminal's standard error, else a line now and then."""
        if not _console.is_terminal:
            yield Lines()
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=_console, transient=True) as bars:
            tasks = {}

            def report(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bars.add_task(escape(what), total=total)
                bars.update(tasks[what], completed=done)

            yield report


class Lines:
    """Progress in a log: a line for every tenth of a kind of work."""

    def __init__(self) -> None:
        self._tenths: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        tenths = 10 * done // total
        if tenths > self._tenths.get(what, 0):
            self._tenths[what] = tenths
            _console.print(f"{what}: {done} of {total}", soft_wrap=True, markup=False)


def load(model: str, text: Path | None, *, device: str, dtype: str) -> Loaded:
    """Raises ConfigError, ModelLoadError, SparsityError."""
    settings, roots = local_model({"model": model, "device": device, "dtype": dtype})
    config = engine_config(settings)
    content = _read(text)
    with _console.status(f"loading {escape(model)}"):
        found = resolve(config.model, roots=roots or [Path.cwd()])
        # The name goes into calibration files, which servers quote: never a path
        source = found._replace(name=found.path.name if Path(model).exists() else model)
        architecture = load_config(source).architecture
        if architecture not in FUSED_ARCHITECTURES:
            raise load_error(
                source,
                f"it is a {architecture}, and sparsity is known of Llama-like models only: "
                f"{', '.join(FUSED_ARCHITECTURES)}",
            )
        tokenizer = Tokenizer.from_source(source)
        windowed = WindowedModel(LoadedModel.load(config, source, Stages()))
    name = "Python's documentation" if text is None else f"the text {text.name!r}"
    return Loaded(source, windowed, Text(content, tokenizer, name))


def _read(path: Path | None) -> str:
    if path is None:
        return python_documentation()
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SparsityError(f"the text {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SparsityError(f"the text {str(path)!r} is not UTF-8: convert it first") from None
