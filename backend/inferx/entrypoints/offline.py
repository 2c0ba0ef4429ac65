"""`inferx generate` and `inferx chat`: a model in this terminal, without a server."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from inferx.engine.sampling import SamplingParams
from inferx.entrypoints.serving import local_model
from inferx.entrypoints.settings import engine_config
from inferx.errors import ModelLoadError, RequestError
from inferx.llm import LLM
from inferx.text.chat import encode_chat
from inferx.text.stream import TextDelta

# What is not the model's text goes to standard error, so that the text can be piped on.
_console = Console(stderr=True, highlight=False)


@contextlib.contextmanager
def loaded(settings: Mapping[str, Any]) -> Iterator[LLM]:
    """The model, loaded, for as long as the context lasts. Raises ConfigError, ModelLoadError."""
    settings, _ = local_model(settings)
    config = engine_config(settings)
    with _console.status(f"loading {escape(config.model)}"):
        llm = LLM(config)
    with llm:
        yield llm


def read_prompt() -> str:
    """All of standard input. In a terminal it says so, since nothing else shows that it waits."""
    if sys.stdin.isatty():
        _console.print("Type the text; Ctrl-D on an empty line ends it.", style="dim")
    return sys.stdin.read()


def show(deltas: Iterable[TextDelta], *, stats: bool) -> str:
    """Prints the text as it comes, then its pace if `stats`; returns the text."""
    begun = time.perf_counter()
    first = last = begun
    text, tokens = "", 0
    for delta in deltas:
        last = time.perf_counter()
        first = first if tokens else last
        tokens += delta.num_tokens
        text += delta.text
        sys.stdout.write(delta.text)
        sys.stdout.flush()
    print(flush=True)
    if stats:
        pace = f", then {(tokens - 1) / (last - first):.0f} tokens/s" if last > first else ""
        _console.print(f"{tokens} tokens, the first after {first - begun:.2f} s{pace}", style="dim")
    return text


def talk(llm: LLM, params: SamplingParams, system: str | None, *, stats: bool) -> None:
    """A conversation until the end of input. An interrupt ends an answer, not the conversation."""
    template = llm.tokenizer.chat_template
    if template is None:
        raise ModelLoadError(
            "this model has no chat template: use 'inferx generate', which needs none"
        )
    messages = [{"role": "system", "content": system}] if system else []
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() the arrow keys and a history
        _console.print(
            "Ctrl-C ends an answer; an empty line or Ctrl-D the conversation.", style="dim"
        )
    while line := _ask():
        messages.append({"role": "user", "content": line})
        prompt = encode_chat(llm.tokenizer, messages)
        try:
            with contextlib.closing(llm.stream(prompt, params)) as deltas:
                answer = show(deltas, stats=stats)
        except KeyboardInterrupt:
            print(flush=True)
            _console.print("interrupted; the question and its answer are forgotten", style="dim")
            messages.pop()
            continue
        except RequestError as error:
            _console.print(f"[red]{escape(str(error))}[/]")
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


def _ask() -> str:
    """The next line, without a mark where no person types; empty at the end of input."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            print()
            return ""
        except KeyboardInterrupt:
            print()
            _console.print("Ctrl-D ends the conversation.", style="dim")
