"""Stores that are started on files that are older, shorter or damaged: what a user gets to see."""

import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segstore.testing.ports import free_ports
from support.rare_parameters import mark_rare

from .serving.test_standalone import create_stream, events_of, write_numbers

if TYPE_CHECKING:
    from .conftest import Standalone

NewStore = Callable[[], "Standalone"]
EXIT_REFUSED = 78


def live(new_store: NewStore, *, streams: tuple[str, ...] = ()) -> Path:
    """Start a store, write 100 events to each of these new streams and stop it.

    Return its journal.
    """
    store = new_store()
    store.start()
    for stream in streams:
        create_stream(store, stream, 2)
        write_numbers(store, stream, 100, every=200, meanwhile=lambda: None)
    assert store.stop() == 0
    return store.data_dir / "journal-0"


def start_refused(store: "Standalone") -> str:
    """Start a store that refuses; the sentence with which it ends."""
    command = [each for each in store.command if each not in ("--log-file", str(store.log))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == EXIT_REFUSED
    assert "Traceback" not in done.stderr
    *_, sentence = done.stderr.splitlines()
    assert f"'segstore recover --data-dir {store.data_dir}' tells what can be saved" in sentence
    return sentence


def start_server_refused(store: "Standalone") -> str:
    """Start the segment store alone; return the sentence with which it refuses."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "pravega_admin", "server", "--port", str(port)]
    done = subprocess.run(
        [*command, "--data-dir", str(store.data_dir)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == EXIT_REFUSED
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def replace(path: Path, copy: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(copy, path)


@pytest.mark.proof
def test_an_older_journal_is_refused_each_time_and_nothing_is_lost(
    new_store: NewStore, tmp_path: Path
) -> None:
    journal = live(new_store, streams=("first",))
    shutil.copytree(journal, tmp_path / "older")
    live(new_store, streams=("second",))
    live(new_store)
    shutil.copytree(journal, tmp_path / "newest")
    replace(journal, tmp_path / "older")
    # Files that were put back in place; a whole directory is told by its identity.
    shutil.copy(tmp_path / "newest" / "identity.toml", journal)
    for start in (start_refused, start_server_refused, start_refused, start_server_refused):
        assert "the journal is an older copy, or was lost" in start(new_store())
    shutil.copy(journal / "identity.toml", tmp_path / "newest")
    replace(journal, tmp_path / "newest")
    store = new_store()
    store.start()
    for stream in ("first", "second"):
        assert sorted(map(int, events_of(store, stream))) == list(range(100))
    assert store.stop() == 0


def written_bytes(file: Path) -> int:
    return len(file.read_bytes().rstrip(b"\0"))


def newest_file(journal: Path) -> Path:
    """Return the journal's newest file; a quiet store may have begun one that is short."""
    return max(journal.glob("*.journal"), key=lambda file: file.stat().st_mtime_ns)


def cut(file: Path) -> str:
    length = written_bytes(file) - 100
    with file.open("r+b") as opened:
        opened.truncate(length)
    return f"{file.name}, offset {length}: the file ends there"


def flip(file: Path) -> str:
    """Change a bit in the first batch of those that were acknowledged: 80 bytes are the least."""
    with file.open("r+b") as opened:
        opened.seek(4096 + 60)
        [byte] = opened.read(1)
        opened.seek(4096 + 60)
        opened.write(bytes([byte ^ 1]))
    return f"{file.name}, offset 4096: the batch is damaged"


@pytest.mark.parametrize("harm", mark_rare([cut, flip], 1))
def test_a_journal_file_that_is_damaged_is_named_with_its_offset(
    new_store: NewStore, harm: Callable[[Path], str]
) -> None:
    journal = live(new_store, streams=("first",))
    expected = harm(newest_file(journal))
    assert expected in start_refused(new_store())
    assert expected in start_server_refused(new_store())


@pytest.mark.proof
def test_damage_that_a_running_store_meets_ends_it_with_file_and_offset(
    new_store: NewStore,
) -> None:
    store = new_store()
    store.start()
    create_stream(store, "first", 2)
    write_numbers(store, "first", 100, every=200, meanwhile=lambda: None)
    # The newest file may be one that is ready for later and has nothing yet.
    expected = flip(min((store.data_dir / "journal-0").glob("*.journal")))
    # The next write to the journal fails, so that it is opened again.
    resource.prlimit(store.pid_of("segment-store-0"), resource.RLIMIT_FSIZE, (4096, 4096))
    assert store.process is not None
    command = [sys.executable, "-m", "pravega_admin", "scope", "create", "more"]
    with subprocess.Popen([*command, "--controller", store.controller]) as writer:
        try:
            assert store.process.wait(timeout=60) == EXIT_REFUSED
        finally:
            writer.kill()
    assert expected in start_refused(store)


def test_a_damaged_last_frame_of_chunk_metadata_is_named_after_a_gentle_stop(
    new_store: NewStore,
) -> None:
    journal = live(new_store, streams=("first",))
    system = journal.parent / "storage" / "_system"
    # The store's end is in a snapshot. Where that is damaged too, the journal before it counts.
    for journal_file in system.rglob("chunks-*$journal-*"):
        container = journal_file.name.partition("$")[0]
        snapshot = max(system.glob(f"{container}$snapshot-*"))
        for path in (journal_file, snapshot):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
    [port] = free_ports(1)
    command = [sys.executable, "-m", "pravega_admin", "server", "--port", str(port)]
    # Containers whose metadata had no changes go on.
    with subprocess.Popen(
        [*command, "--data-dir", str(journal.parent)], stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        try:
            line = next(line for line in server.stderr if "container failed" in line)
        finally:
            server.kill()
    assert re.search(r"_system/chunks-\d\$journal-\d{10}-\d{10} is damaged at offset \d", line)
