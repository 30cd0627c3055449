from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.tiers.files.doubtful_files import DoubtNotes


def test_the_last_note_of_a_file_counts(tmp_path: Path) -> None:
    notes = DoubtNotes(tmp_path / "doubts")
    assert notes.read() == {}
    notes.add("a b\n", 7)
    notes.add("c", 1)
    notes.add("a b\n", 5)
    assert notes.read() == {"a b\n": 5, "c": 1}
    notes.replace({"c": 1})
    assert notes.read() == {"c": 1}
    notes.replace({})
    assert list(tmp_path.iterdir()) == []


@given(st.integers(0, 40))
def test_a_note_that_was_not_written_whole_spoils_no_other(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "doubts"
        notes = DoubtNotes(path)
        notes.add("first", 7)
        whole = path.read_bytes()
        notes.add("second 2", 8)
        path.write_bytes(path.read_bytes()[: len(whole) + cut])
        assert notes.read() in ({"first": 7}, {"first": 7, "second 2": 8})
        notes.add("third", 9)
        assert {"first": 7, "third": 9}.items() <= notes.read().items()


def test_a_note_that_is_repeated_takes_no_more_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "doubts"
    notes = DoubtNotes(path)
    notes.add("other", 1)
    for length in (7, 8, 7):
        with monkeypatch.context() as patches:
            patches.setattr(notes, "_sync_directory", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                notes.add("file", length)
        notes.add("file", length)
        size = path.stat().st_size
        for _ in range(3):
            notes.add("file", length)
            notes.add("other", 1)
        assert path.stat().st_size == size
        assert notes.read() == {"other": 1, "file": length}
        notes.clear("file")
        assert notes.read() == {"other": 1}
        notes.add("other", 1)


def test_a_note_that_could_not_be_cleared_is_added_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = DoubtNotes(tmp_path / "doubts")
    notes.add("other", 1)
    notes.add("file", 7)
    with monkeypatch.context() as patches:
        patches.setattr(notes, "_sync_directory", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            notes.clear("file")
    notes.add("file", 7)
    assert notes.read() == {"other": 1, "file": 7}


@pytest.mark.processes
def test_a_note_for_which_there_is_no_room_is_an_error(tmp_path: Path) -> None:
    script = """
import resource, signal, sys
from pathlib import Path
from segstore.tiers.files.doubtful_files import DoubtNotes
path = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
notes = DoubtNotes(path)
notes.add("first", 7)
length = path.stat().st_size + 10
resource.setrlimit(resource.RLIMIT_FSIZE, (length, length))
try:
    notes.add("second", 8)
except OSError as error:
    print(error.errno, notes.read())
"""
    command = [sys.executable, "-c", script, str(tmp_path / "doubts")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{errno.ENOSPC} {{'first': 7}}\n"


def test_a_second_note_makes_the_first_name_durable_that_failed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = DoubtNotes(tmp_path / "doubts")
    synced: list[str] = []

    def note(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path == str(tmp_path) and "failed" not in synced:
            synced.append("failed")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced.append(path)

    monkeypatch.setattr(os, "fsync", note)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        notes.add("first", 7)
    notes.add("second", 8)
    assert synced[-1] == str(tmp_path)


@given(st.integers(0, 40), st.binary(min_size=1, max_size=40))
def test_a_note_that_a_power_cut_has_left_half_spoils_no_other(kept: int, left: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "doubts"
        notes = DoubtNotes(path)
        notes.add("first", 7)
        whole = path.read_bytes()
        notes.add("second 2", 8)
        line = path.read_bytes()[len(whole) :]
        path.write_bytes(whole + (line[:kept] + left.ljust(len(line), b"\0"))[: len(line)])
        assert notes.read()["first"] == 7
        notes.add("third", 9)
        assert {"first": 7, "third": 9}.items() <= notes.read().items()
