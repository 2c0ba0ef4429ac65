"""Files that commands write: what cannot be one is said before the work, in one sentence."""

from __future__ import annotations

import os
import resource
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from inferx.cli import app
from inferx.errors import OutputError
from inferx.observe.memory_picture import check_pictures
from inferx.outputs import check_writable, write, write_picture
from typer.testing import CliRunner


def refusal(of: Callable[[], object]) -> str:
    with pytest.raises(OutputError) as refused:
        of()
    return str(refused.value)


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    lost, ahead = tmp_path / "lost.json", tmp_path / "ahead.json"
    lost.symlink_to(tmp_path / "nowhere" / "file.json")
    ahead.symlink_to(tmp_path / "file.json")
    assert refusal(lambda: check_writable("--json", lost)) == (
        f"the file '{lost}' cannot be written (No such file or directory): name another with --json"
    )
    check_writable("--json", ahead)
    write("--json", ahead, b"{}")
    assert (tmp_path / "file.json").read_bytes() == b"{}"


def test_looking_leaves_no_file_and_changes_none(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("before")
    for path in (there, tmp_path / "new.json"):
        check_writable("--json", path)
    assert list(tmp_path.iterdir()) == [there]
    assert there.read_text() == "before"


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond four bytes, what the tests print to included."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_is_there_outlives_one_that_could_not_be_written(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("old")
    with full_disk():
        said = refusal(lambda: write("--json", there, b"larger"))
        refusal(lambda: write("--json", tmp_path / "new.json", b"larger"))
    assert (
        said == f"the file '{there}' cannot be written (File too large): name another with --json"
    )
    assert list(tmp_path.iterdir()) == [there]
    assert there.read_text() == "old"


def test_a_file_that_is_written_over_keeps_its_permissions_and_its_links(tmp_path: Path) -> None:
    there, link, name = tmp_path / "there.json", tmp_path / "link.json", tmp_path / "name.json"
    there.write_text("before")
    there.chmod(0o640)
    link.symlink_to(there)
    for path, content in ((there, b"1"), (link, b"2")):
        write("--json", path, content)
        assert there.read_bytes() == content
        assert there.stat().st_mode & 0o777 == 0o640
    name.hardlink_to(there)
    write("--json", name, b"3")
    assert there.read_bytes() == b"3"
    assert link.is_symlink()


def test_a_link_that_waits_under_the_unfinished_file_s_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user can lay one in a folder like /tmp."""
    monkeypatch.setattr(secrets, "token_hex", lambda size: "guessed")
    other, link, new = tmp_path / "other", tmp_path / ".guessed.unfinished", tmp_path / "new.json"
    other.write_text("theirs")
    link.symlink_to(other)
    assert refusal(lambda: write("--json", new, b"{}")) == (
        f"the file '{new}' cannot be written (File exists): name another with --json"
    )
    assert other.read_text() == "theirs"
    assert sorted(tmp_path.iterdir()) == [link, other]


def test_a_device_is_written_to() -> None:
    check_writable("--json", Path("/dev/null"))
    write("--json", Path("/dev/null"), b"{}")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "socket"])
def test_a_fifo_or_socket_is_refused_and_never_opened(tmp_path: Path, kind: str) -> None:
    """Opening a FIFO to write waits until somebody reads it."""
    path = tmp_path / "out.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link to a fifo":
        os.mkfifo(tmp_path / "fifo")
        path.symlink_to(tmp_path / "fifo")
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    for attempt in (
        lambda: check_writable("--json", path),
        lambda: write("--json", path, b"{}"),
    ):
        assert refusal(attempt) == (
            f"--json is '{path}', a pipe or the like: give the name of a file"
        )
    assert not path.is_file()


@pytest.mark.parametrize("name", ["p.png", "p.svg"])
def test_an_interrupt_while_a_picture_is_drawn_leaves_no_part_of_it(
    tmp_path: Path, name: str
) -> None:
    artist = pytest.importorskip("matplotlib.artist")
    figure = pytest.importorskip("matplotlib.figure").Figure()

    class Interrupted(artist.Artist):
        def draw(self, renderer: object) -> None:
            raise KeyboardInterrupt

    figure.add_artist(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        write_picture("--picture", tmp_path / name, figure, dpi=50)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "command", "name"),
    [
        ("--output", ["bench", "model"], "report.csv"),
        ("--picture", ["memory", "model"], "memory.png"),
        ("--json", ["sparsity", "measure", "model"], "found.json"),
    ],
)
def test_every_command_has_one_sentence_for_a_folder_that_is_not_there(
    tmp_path: Path, option: str, command: list[str], name: str
) -> None:
    path = tmp_path / "no-such-folder" / name
    ended = CliRunner().invoke(app, [*command, f"{option}={path}"])
    assert isinstance(ended.exception, OutputError)
    assert str(ended.exception) == f"{option} is '{path}': give a file in a folder that exists"


@pytest.mark.parametrize("suffix", [".json", ".csv", ".html"])
def test_a_load_test_does_not_begin_where_its_report_cannot_be_written(suffix: str) -> None:
    ended = CliRunner().invoke(app, ["bench", "model", f"--output=/proc/report{suffix}"])
    assert isinstance(ended.exception, OutputError)
    assert str(ended.exception) == (
        f"the file '/proc/report{suffix}' cannot be written (No such file or directory): name "
        "another with --output"
    )


def test_a_picture_of_memory_that_cannot_be_written_is_refused_before_the_load() -> None:
    assert refusal(lambda: check_pictures([Path("/proc/memory.png")])) == (
        "the file '/proc/memory.png' cannot be written (No such file or directory): name another "
        "with --picture"
    )
