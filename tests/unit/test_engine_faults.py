"""What ends badly: the engine process, its parent, the load; each in a real process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
from inferx.engine import spawn
from inferx.engine.sampling import SamplingParams
from inferx.errors import ModelLoadError, Unavailable
from running_engine import (
    PATIENCE,
    Outputs,
    engine_process,
    engine_processes,
    make_client,
    wait_until,
)

HERE = Path(__file__).parent
FOREVER = SamplingParams(max_tokens=8000)


@pytest.fixture
def start(monkeypatch):
    """Starts a client, with a broken engine if `how` says so; closes it after the test."""
    clients = []

    def start(how=None, **settings):
        if how:
            broken = [sys.executable, str(HERE / "broken_engine.py"), how]
            monkeypatch.setattr(spawn, "COMMAND", broken)
        client = make_client(**settings)
        clients.append(client)
        client.start()
        return client

    yield start
    for client in clients:
        client.close(5)
    assert not engine_processes()


def has_ended(pid, seconds):
    """Whether a process that is not a child of ours ends within that time."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    ended = bool(poller.poll(seconds * 1000))
    os.close(pidfd)
    return ended


def start_parent(directory, *situation):
    return subprocess.Popen(
        [sys.executable, str(HERE / "engine_parent.py"), *situation],
        env={**os.environ, "TMPDIR": str(directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


# The engine process ends


def test_a_killed_engine_ends_its_requests_once_and_comes_back(start):
    client = start()
    outputs = Outputs()
    uids = client.submit([1], [FOREVER] * 150, outputs)
    outputs.wait_for_first(uids[:100])
    process = engine_process()
    process.kill()
    outputs.wait_for_last(uids)
    assert {outputs.error(uid)[0] for uid in uids} == {"UNAVAILABLE"}
    assert "ended unexpectedly" in outputs.error(uids[0])[1]
    assert {outputs.num_last(uid) for uid in uids} == {1}
    assert client.num_in_flight == 0

    wait_until(lambda: client.is_up)
    (uid,) = client.submit([1], [SamplingParams(max_tokens=5)], outputs)
    outputs.wait_for_last([uid])
    assert outputs.error(uid) is None
    assert engine_process().pid != process.pid
    assert client.num_restarts == 1


def test_without_process_descriptors_an_engines_end_is_noticed_too(start, monkeypatch):
    def refuse(pid):
        raise PermissionError("a container's rules")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    client = start(max_engine_restarts=0)
    outputs = Outputs()
    uids = client.submit([1], [FOREVER], outputs)
    outputs.wait_for_first(uids)
    engine_process().kill()
    outputs.wait_for_last(uids)
    assert outputs.error(uids[0])[0] == "UNAVAILABLE"


def test_while_it_restarts_new_requests_are_refused_at_once(start, monkeypatch):
    client = start()
    monkeypatch.setattr(
        spawn, "COMMAND", [sys.executable, str(HERE / "broken_engine.py"), "load_forever"]
    )
    engine_process().kill()
    wait_until(lambda: not client.is_up)
    with pytest.raises(Unavailable, match="restarted"):
        client.submit([1], [FOREVER], Outputs())
    client.abort([1])


def test_counters_never_go_back_over_a_restart(start):
    client = start()
    outputs = Outputs()
    (uid,) = client.submit([1], [SamplingParams(max_tokens=20)], outputs)
    outputs.wait_for_last([uid])
    wait_until(lambda: client.stats.generated_tokens == 20)
    engine_process().kill()
    wait_until(lambda: not client.is_up)
    assert client.stats.generated_tokens == 20
    assert client.stats.free_blocks == 0
    wait_until(lambda: client.is_up)
    (uid,) = client.submit([1], [SamplingParams(max_tokens=3)], outputs)
    outputs.wait_for_last([uid])
    wait_until(lambda: client.stats.generated_tokens == 23)


def test_restarts_are_bounded_and_then_the_engine_stays_down(start):
    client = start(max_engine_restarts=2)
    for restarts in (1, 2):
        engine_process().kill()
        wait_until(lambda n=restarts: client.num_restarts == n and client.is_up)
    outputs = Outputs()
    (uid,) = client.submit([1], [FOREVER], outputs)
    engine_process().kill()
    outputs.wait_for_last([uid])
    assert "will not be restarted" in outputs.error(uid)[1]
    with pytest.raises(Unavailable, match="down"):
        client.submit([1], [FOREVER], outputs)
    assert not client.is_up
    assert client.num_restarts == 2


def test_a_restart_that_fails_to_load_counts_too(start, monkeypatch):
    client = start(max_engine_restarts=2)
    monkeypatch.setattr(
        spawn, "COMMAND", [sys.executable, str(HERE / "broken_engine.py"), "refuse_to_load"]
    )
    engine_process().kill()

    def is_down():
        try:
            client.submit([1], [FOREVER], Outputs())
        except Unavailable as error:
            return "down" in str(error)
        return False

    wait_until(is_down)


def test_an_engine_that_hangs_is_killed_after_the_heartbeat_timeout(start):
    client = start(heartbeat_timeout=1.0)
    outputs = Outputs()
    uids = client.submit([1], [FOREVER] * 2, outputs)
    outputs.wait_for_first(uids)
    process = engine_process()
    process.suspend()
    outputs.wait_for_last(uids)
    assert {outputs.error(uid)[0] for uid in uids} == {"UNAVAILABLE"}
    wait_until(lambda: client.is_up)
    assert not process.is_running()


def test_a_step_without_end_counts_as_a_hang(start):
    client = start("step_forever", heartbeat_timeout=1.0, max_engine_restarts=0)
    outputs = Outputs()
    uids = client.submit([1], [FOREVER], outputs)
    outputs.wait_for_last(uids)
    assert not client.is_up


def test_an_engine_busy_beyond_the_heartbeat_timeout_is_not_hung(start):
    client = start(heartbeat_timeout=0.5, synthetic_step_time=0.2)
    outputs = Outputs()
    (uid,) = client.submit([1], [SamplingParams(max_tokens=8)], outputs)
    outputs.wait_for_last([uid])
    assert outputs.error(uid) is None
    assert client.num_restarts == 0


def test_a_parent_that_was_stopped_does_not_take_that_time_for_the_engines_silence(tmp_path):
    parent = start_parent(tmp_path, "serving")
    parent.stdout.readline()
    parent.send_signal(signal.SIGSTOP)
    time.sleep(1.5)  # three heartbeat timeouts
    parent.send_signal(signal.SIGCONT)
    num_restarts, _ = parent.communicate(b"\n", timeout=PATIENCE)
    assert int(num_restarts) == 0


def test_an_exception_in_a_step_ends_the_engine_and_its_traceback_is_only_in_the_log(start, capfd):
    client = start("fail_in_the_third_step", max_engine_restarts=0)
    outputs = Outputs()
    uids = client.submit([1], [FOREVER] * 2, outputs)
    outputs.wait_for_last(uids)
    assert {outputs.error(uid)[0] for uid in uids} == {"UNAVAILABLE"}
    assert "broken on purpose" not in outputs.error(uids[0])[1]
    assert "broken on purpose" in capfd.readouterr().err


def test_interrupts_of_the_whole_process_group_leave_the_engine_alone(start):
    client = start()
    outputs = Outputs()
    for number in (signal.SIGINT, signal.SIGTERM):
        engine_process().send_signal(number)
        (uid,) = client.submit([1], [SamplingParams(max_tokens=30)], outputs)
        outputs.wait_for_last([uid])
        assert outputs.error(uid) is None
    assert client.num_restarts == 0


# The parent ends


@pytest.mark.parametrize(
    "situation",
    [
        ["serving"],
        ["loading", "load_forever"],
        ["loading", "load_busily"],
        ["serving", "step_forever"],
    ],
    ids=" ".join,
)
def test_the_engine_goes_with_a_killed_parent_and_no_file_stays(situation, tmp_path):
    parent = start_parent(tmp_path, *situation)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    assert has_ended(pid, 2)
    assert not any(tmp_path.iterdir())


def test_a_program_that_forgets_to_close_ends_quietly_and_its_engine_too():
    parent = subprocess.run(
        [sys.executable, str(HERE / "engine_parent.py"), "forgetful"],
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert has_ended(int(parent.stdout), 2)
    assert parent.stderr == b""


# The load fails


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("refuse_to_load", r"^model 'x': its folder has no weights$"),
        ("fail_to_load", r"^model 'synthetic': .* unexpected ZeroDivisionError; the log"),
        ("exit_while_loading", r"^model 'synthetic': .* exit status 7 while it loaded$"),
        ("run_out_of_memory", r"^model 'synthetic': .* killed by SIGKILL while it loaded .*memory"),
    ],
)
def test_a_failed_load_is_one_sentence(start, how, sentence):
    with pytest.raises(ModelLoadError, match=sentence):
        start(how)


def test_a_missing_model_fails_the_load_and_no_path_is_told(start, tmp_path):
    with pytest.raises(ModelLoadError, match=r"^model 'absent': there is no such file or folder$"):
        start(engine="inferx", model=str(tmp_path / "absent"))


def test_a_load_without_end_fails_at_the_start_timeout(start):
    with pytest.raises(ModelLoadError, match=r"not ready within 0\.5 seconds \(start_timeout\)"):
        start("load_forever", start_timeout=0.5)


def test_closing_while_it_loads_ends_the_load(monkeypatch):
    broken = [sys.executable, str(HERE / "broken_engine.py"), "load_forever"]
    monkeypatch.setattr(spawn, "COMMAND", broken)
    client = make_client()
    failures = []

    def load():
        with pytest.raises(ModelLoadError) as failed:
            client.start()
        failures.append(str(failed.value))

    loading = threading.Thread(target=load)
    loading.start()
    wait_until(lambda: len(engine_processes()) == 1)
    client.close(PATIENCE)
    loading.join()
    assert failures == ["model 'synthetic': closed while it loaded"]
    assert not engine_processes()


# Nothing is left


def test_closing_an_engine_that_does_not_listen_is_bounded(start):
    client = start()
    process = engine_process()
    process.suspend()
    client.close(0.2)
    assert not process.is_running()


def test_closing_works_before_the_start_and_after_a_failed_one(start):
    client = make_client()
    client.close(1)
    client.close(1)
    with pytest.raises(ModelLoadError, match="closed"):
        client.start()
    with pytest.raises(ModelLoadError):
        start("refuse_to_load")


def test_twenty_lives_leave_no_process_thread_descriptor_or_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    me = psutil.Process()

    def live():
        client = make_client()
        client.start()
        outputs = Outputs()
        (uid,) = client.submit([1], [SamplingParams(max_tokens=3)], outputs)
        outputs.wait_for_last([uid])
        client.close(5)

    live()
    num_fds, num_threads = me.num_fds(), me.num_threads()
    for _ in range(20):
        live()
    assert me.num_fds() == num_fds
    wait_until(lambda: me.num_threads() <= num_threads)  # the kernel's view comes a moment late
    assert not engine_processes()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path")
def test_the_engine_imports_nothing_from_the_working_directory(tmp_path, monkeypatch, start):
    """Whoever may write there could else put code of theirs into the process with the GPU."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert start().is_up
