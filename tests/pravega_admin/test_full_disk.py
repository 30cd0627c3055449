"""A store on a small disk of its own, which is full: who waits is told why, and nothing is lost."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segstore.testing.faults.small_disk import fill_disk
from support.small_disks import small_disk

pytestmark = pytest.mark.proof

if TYPE_CHECKING:
    from .conftest import Standalone

DISK_BYTES = 96 * 1024**2
LINE = b"x" * 990
NO_ROOM = 75
MORE_THAN_HALF = 50_000
"""Number of events that fill more than half of the disk."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    with small_disk(path, size_bytes=DISK_BYTES):
        yield path


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text("[segment_store]\njournal_file_bytes = 8388608\n")
    return path


def segstore(
    store: Standalone, *arguments: str, lines: bytes = b""
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pravega_admin", *arguments, "--controller", store.controller],
        input=lines,
        capture_output=True,
        check=False,
        timeout=120,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def check(store: Standalone) -> str:
    address = f"127.0.0.1:{store.segment_store_port}"
    command = [sys.executable, "-m", "pravega_admin", "check", "segment-store", address]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def numbered(first: int, count: int) -> bytes:
    return b"".join(b"%010d %s\n" % (number, LINE) for number in range(first, first + count))


def stored_count(done: subprocess.CompletedProcess[str]) -> int:
    """Return how many events were stored at least, as the command says."""
    [line] = [line for line in done.stderr.splitlines() if line.endswith("events were stored")]
    [count, *_] = re.findall(r"\d+", line)
    return int(count)


def read_numbers(store: Standalone, stream: str) -> list[int]:
    done = segstore(store, "read", stream)
    assert done.returncode == 0, done.stderr
    return [int(line.split()[0]) for line in done.stdout.splitlines()]


def start_on(disk: Path, settings: Path, new_store: Callable[[], Standalone]) -> Standalone:
    store = new_store()
    store.data_dir, store.settings = disk / "data", settings
    store.start()
    assert segstore(store, "scope", "create", "demo").returncode == 0
    assert segstore(store, "stream", "create", "demo/log").returncode == 0
    return store


def test_who_waits_for_room_is_told_and_goes_on_when_there_is_some(
    disk: Path, settings: Path, new_store: Callable[[], Standalone]
) -> None:
    store = start_on(disk, settings, new_store)
    assert check(store).endswith(" serves\n")
    fill_disk(disk / "balloon")
    full = f"the disk of {store.data_dir / 'journal-0'} is full"
    failed = segstore(
        store, "write", "demo/log", "--key", "k", "--patience", "3", lines=numbered(0, 40_000)
    )
    assert failed.returncode == NO_ROOM
    told = failed.stderr.splitlines()
    assert len([line for line in told if line.startswith("waiting: ") and full in line]) >= 2
    assert told[-1].startswith("segstore: demo/log/0.#epoch.0 could not be written to for 3 s: ")
    assert full in told[-1]
    acknowledged = stored_count(failed)
    assert f" serves, but requests wait: {full}" in check(store)
    made = segstore(store, "stream", "create", "demo/other")
    assert "no controller answers" not in made.stderr
    assert made.returncode == 0 or (made.returncode == NO_ROOM and full in made.stderr)

    (disk / "balloon").unlink()
    done = segstore(store, "write", "demo/log", "--key", "k", lines=numbered(100_000, 100))
    assert done.returncode == 0, done.stderr
    numbers = read_numbers(store, "demo/log")
    first = [number for number in numbers if number < 100_000]
    assert first == list(range(len(first)))
    assert len(first) >= acknowledged
    assert numbers[len(first) :] == list(range(100_000, 100_100))
    log = store.log.read_text()
    assert f"{full}: appends wait" in log
    assert "a disk is filling up" in log


def test_a_full_tier_2_of_its_own_is_told_while_the_journal_takes_more(
    disk: Path, tmp_path: Path, new_store: Callable[[], Standalone]
) -> None:
    store = new_store()
    store.settings = tmp_path / "settings.toml"
    store.settings.write_text(f'[segment_store]\nstorage_dir = "{disk}"\n')
    store.start()
    assert segstore(store, "scope", "create", "demo").returncode == 0
    assert segstore(store, "stream", "create", "demo/log").returncode == 0
    fill_disk(disk / "balloon")
    done = segstore(store, "write", "demo/log", lines=numbered(0, 20_000))
    assert done.returncode == 0, done.stderr
    wanted = f"requests wait: the disk of {disk} is full"
    for _ in range(60):
        if wanted in (told := check(store)):
            break
    assert wanted in told
    (disk / "balloon").unlink()
    for _ in range(60):
        if wanted not in (told := check(store)):
            break
    assert wanted not in told


def write_until_full(store: Standalone, stream: str, first: int) -> int:
    """Write events until the disk is full; return how many were stored at least."""
    done = segstore(
        store, "write", stream, "--key", "k", "--patience", "3", lines=numbered(first, 120_000)
    )
    assert done.returncode == NO_ROOM, done.stderr
    assert "is full" in done.stderr.splitlines()[-1]
    return stored_count(done)


def run(store: Standalone, *arguments: str, lines: bytes = b"") -> None:
    done = segstore(store, *arguments, lines=lines)
    assert done.returncode == 0, done.stderr


def test_a_full_store_is_emptied_by_truncating_sealing_and_deleting(
    disk: Path, settings: Path, new_store: Callable[[], Standalone]
) -> None:
    store = start_on(disk, settings, new_store)
    # What was on its way when the disk became full may be stored without being acknowledged.
    assert write_until_full(store, "demo/log", 0) > MORE_THAN_HALF * 3 // 4
    run(store, "stream", "truncate", "demo/log", "--tail")
    # These do not fit beside what was there.
    run(store, "write", "demo/log", "--key", "k", lines=numbered(200_000, MORE_THAN_HALF))
    numbers = read_numbers(store, "demo/log")
    assert numbers[-MORE_THAN_HALF:] == list(range(200_000, 200_000 + MORE_THAN_HALF))
    # What was sent and not acknowledged may come behind the truncation, in its order.
    late = numbers[:-MORE_THAN_HALF]
    assert late == list(range(late[0], late[0] + len(late))) if late else True

    acknowledged = write_until_full(store, "demo/log", 300_000)
    run(store, "stream", "seal", "demo/log")
    numbers = [number for number in read_numbers(store, "demo/log") if number >= 300_000]
    assert numbers == list(range(300_000, 300_000 + len(numbers)))
    assert len(numbers) >= acknowledged
    run(store, "stream", "delete", "demo/log")
    run(store, "stream", "create", "demo/next")
    run(store, "write", "demo/next", "--key", "k", lines=numbered(0, MORE_THAN_HALF))
    assert read_numbers(store, "demo/next") == list(range(MORE_THAN_HALF))


def test_a_store_that_was_killed_while_full_starts_and_is_emptied_by_deleting_its_scope(
    disk: Path, settings: Path, new_store: Callable[[], Standalone]
) -> None:
    store = start_on(disk, settings, new_store)
    acknowledged = write_until_full(store, "demo/log", 0)
    store.close()  # kill -9 of all
    store.start()
    assert "is full" in check(store)
    numbers = read_numbers(store, "demo/log")
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= acknowledged
    run(store, "scope", "delete", "demo", "--recursive")
    run(store, "scope", "create", "demo")
    run(store, "stream", "create", "demo/log")
    run(store, "write", "demo/log", "--key", "k", lines=numbered(0, 10_000))
    assert read_numbers(store, "demo/log") == list(range(10_000))


def test_a_disk_without_inodes_is_told_and_freed_by_deleting(
    tmp_path: Path, new_store: Callable[[], Standalone]
) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, size_bytes=DISK_BYTES, inodes_max=120):
        store = new_store()
        store.settings = tmp_path / "settings.toml"
        store.settings.write_text(f'[segment_store]\nstorage_dir = "{disk}"\n')
        store.start()
        run(store, "scope", "create", "demo")
        # Each chunk is a file.
        run(store, "stream", "create", "demo/log", "--rollover-size", "10kB")
        run(store, "write", "demo/log", "--key", "k", lines=numbered(0, 5_000))
        wanted = f"the disk of {disk} is full: it has no inode left for another file"
        for _ in range(60):
            if wanted in (told := check(store)):
                break
        assert wanted in told
        assert read_numbers(store, "demo/log") == list(range(5_000))
        run(store, "stream", "truncate", "demo/log", "--tail")
        for _ in range(60):
            if wanted not in (told := check(store)):
                break
        assert wanted not in told
        run(store, "write", "demo/log", "--key", "k", lines=numbered(5_000, 10))
        assert read_numbers(store, "demo/log") == list(range(5_000, 5_010))
