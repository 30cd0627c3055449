"""Short writes that come together go to a thread together, each with an outcome of its own."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from segstore.errors import InvalidChunkOffsetError, StorageError
from segstore.tiers.files import filesystem
from segstore.tiers.files.doubtful_files import DoubtNotes
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.files.write_groups import WRITES_MAX, ShortWrite, WriteGroups

NAMES = [f"scope/stream {number}/0$0" for number in range(100)]
Outcomes = list[tuple[int, int, int]]


async def write_all(
    storage: FilesystemChunkStorage, names: Sequence[str], *, offset: int = 0, data: bytes = b"data"
) -> dict[str, str]:
    """Write to all at once; the errors by name."""
    failures: dict[str, str] = {}

    async def write(name: str) -> None:
        try:
            await storage.write(name, offset=offset, data=[data])
        except StorageError as error:
            failures[name] = str(error)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(write, name)
    return failures


async def lengths(storage: FilesystemChunkStorage) -> dict[str, int]:
    return {chunk.name: chunk.length for chunk in await storage.list_chunks("")}


async def test_what_is_written_together_is_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    monkeypatch.setattr(filesystem, "write_files", counted(groups))
    storage = FilesystemChunkStorage(tmp_path)
    for round_number in range(3):
        assert await write_all(storage, NAMES, offset=4 * round_number) == {}
    assert max(groups) == WRITES_MAX
    assert len(groups) < 100
    assert await lengths(storage) == dict.fromkeys(NAMES, 12)
    assert await storage.read(NAMES[7], offset=0, length=12) == b"datadatadata"
    storage.close()
    later = FilesystemChunkStorage(tmp_path)
    assert await lengths(later) == dict.fromkeys(NAMES, 12)
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if "new" in name]
    later.close()


def counted(groups: list[int]) -> Callable[..., Outcomes]:
    real = filesystem.write_files

    def write_files(requests: list[tuple[bytes, bytes | None, int, Sequence[bytes]]]) -> Outcomes:
        groups.append(len(requests))
        return real(requests)  # type: ignore[arg-type]

    return write_files


async def test_one_that_does_not_fit_fails_alone(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    await write_all(storage, NAMES[:20])
    await storage.write(NAMES[3], offset=4, data=[b"more"])
    await storage.delete(NAMES[5])
    failures = await write_all(storage, NAMES[:20], offset=8)
    assert failures.keys() == set(NAMES[:20]) - {NAMES[3]}
    assert "has 4 bytes, not 8" in failures[NAMES[4]]
    assert "there is no chunk" in failures[NAMES[5]]
    with pytest.raises(InvalidChunkOffsetError):
        await storage.write(NAMES[4], offset=-1, data=[b"x"])
    storage.close()


@pytest.mark.parametrize("cut", ["cut off", "noted"])
async def test_what_failed_writes_of_a_group_left_counts_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    root, doubts = tmp_path / "tier 2", DoubtNotes(tmp_path / "doubts")
    root.mkdir()
    storage = FilesystemChunkStorage(root, doubts=doubts)
    await write_all(storage, NAMES[:20])
    real, failed = filesystem.write_files, {NAMES[2], NAMES[19]}
    paths = {os.fsencode(root / filesystem.path_of(name)) for name in failed}

    def write_files(requests: list[tuple[bytes, bytes | None, int, Sequence[bytes]]]) -> Outcomes:
        outcomes = real(requests)  # type: ignore[arg-type]
        return [
            (filesystem.NOT_STORED, errno.EIO, outcome[2]) if request[0] in paths else outcome
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patches:
        patches.setattr(filesystem, "write_files", write_files)
        if cut == "noted":
            patches.setattr(os, "ftruncate", fail)
        failures = await write_all(storage, NAMES[:20], offset=4)
    assert failures.keys() == failed
    assert all("Input/output error" in told for told in failures.values())
    expected = dict.fromkeys(NAMES[:20], 8) | dict.fromkeys(failed, 4)
    assert await lengths(storage) == expected
    assert len(doubts.read()) == (2 if cut == "noted" else 0)
    storage.close()
    later = FilesystemChunkStorage(root, doubts=doubts)
    assert await lengths(later) == expected
    # What is written again counts again, and no later process cuts it off.
    assert await write_all(later, sorted(failed), offset=4) == {}
    assert await lengths(later) == dict.fromkeys(NAMES[:20], 8)
    assert not doubts.read()
    later.close()


async def test_new_files_whose_names_are_not_durable_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    names = [*(f"fine/{number}" for number in range(3)), *(f"bad/{number}" for number in range(3))]
    await write_all(storage, ["fine/x", "bad/x"])

    def sync_directories(paths: list[bytes]) -> list[int]:
        return [errno.EIO if path.endswith(b"bad") else 0 for path in paths]

    with monkeypatch.context() as patches:
        patches.setattr(filesystem, "sync_directories", sync_directories)
        failures = await write_all(storage, names)
    assert failures.keys() == set(names[3:])
    assert await lengths(storage) == dict.fromkeys([*names[:3], "fine/x", "bad/x"], 4)
    assert await write_all(storage, names[3:]) == {}
    assert await lengths(storage) == dict.fromkeys([*names, "fine/x", "bad/x"], 4)
    storage.close()


async def test_new_files_come_back_into_directories_that_were_removed(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    await write_all(storage, NAMES[:20])
    for name in NAMES[:20]:
        (tmp_path / filesystem.path_of(name)).unlink()
        (tmp_path / filesystem.path_of(name)).parent.rmdir()
    assert await write_all(storage, NAMES[:20]) == {}
    assert await lengths(storage) == dict.fromkeys(NAMES[:20], 4)
    storage.close()


async def test_a_group_ends_before_whoever_gave_it_up_goes_on() -> None:
    begun, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    def write_group(group: Sequence[ShortWrite]) -> None:
        begun.set()
        go_on.wait(10)
        written.extend(write.name for write in group)

    groups = WriteGroups(write_group, limiter=trio.CapacityLimiter(1), groups_max=1)
    ended: list[str] = []

    async def write(name: str) -> None:
        try:
            await groups.write(ShortWrite(name, name, 0, [b""]))
        finally:
            assert name in written or name == "c"
            ended.append(name)

    async with trio.open_nursery() as nursery:
        for name in "ab":
            nursery.start_soon(write, name)
        await trio.to_thread.run_sync(begun.wait, 10)
        nursery.start_soon(write, "c")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert ended == ["c"]
            go_on.set()
    assert sorted(written) == ["a", "b"]
    assert sorted(ended) == ["a", "b", "c"]


async def test_writes_to_the_same_file_are_never_in_one_group() -> None:
    taken: list[list[int]] = []

    def write_group(group: Sequence[ShortWrite]) -> None:
        taken.append([write.offset for write in group])

    groups = WriteGroups(write_group, limiter=trio.CapacityLimiter(1), groups_max=1)
    async with trio.open_nursery() as nursery:
        for offset in range(3):
            nursery.start_soon(groups.write, ShortWrite("same", "same", offset, [b""]))
    assert sorted(taken) == [[0], [1], [2]]


async def test_writes_to_the_same_file_begin_in_the_order_of_their_calls() -> None:
    called: list[int] = []
    begun: list[int] = []

    def write_group(group: Sequence[ShortWrite]) -> None:
        begun.extend(write.offset for write in group)

    groups = WriteGroups(write_group, limiter=trio.CapacityLimiter(1), groups_max=1)

    async def write(offset: int) -> None:
        called.append(offset)
        await groups.write(ShortWrite("same", "same", offset, [b""]))

    async with trio.open_nursery() as nursery:
        for offset in range(10):
            nursery.start_soon(write, offset)
    assert begun == called


async def test_writes_to_the_same_file_at_the_same_time_are_all_written() -> None:
    """This holds for any order in which the writes that have a place run."""
    for _ in range(20):
        written: list[int] = []

        def write_group(group: Sequence[ShortWrite], written: list[int] = written) -> None:
            written.extend(write.offset for write in group)

        groups = WriteGroups(write_group, limiter=trio.CapacityLimiter(1), groups_max=4)
        async with trio.open_nursery() as nursery:
            for offset in range(4):
                nursery.start_soon(groups.write, ShortWrite("same", "same", offset, [b""]))
        assert sorted(written) == [0, 1, 2, 3]


async def test_no_write_succeeds_whose_group_was_broken_off() -> None:
    begun, go_on = threading.Event(), threading.Event()
    failed: list[str] = []

    def write_group(_: Sequence[ShortWrite]) -> None:
        if begun.is_set():
            raise KeyboardInterrupt
        begun.set()
        go_on.wait(10)

    groups = WriteGroups(write_group, limiter=trio.CapacityLimiter(1), groups_max=1)

    async def write(name: str) -> None:
        try:
            await groups.write(ShortWrite(name, name, 0, [b""]))
        except StorageError:
            failed.append(name)

    async def write_some() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, "first")
            await trio.to_thread.run_sync(begun.wait, 10)
            for name in "ab":
                nursery.start_soon(write, name)
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()

    with pytest.raises(BaseExceptionGroup) as caught:
        await write_some()
    assert caught.group_contains(KeyboardInterrupt)
    assert len(failed) == 1


async def test_a_directory_that_cannot_be_made_keeps_no_other_file_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    names = ["other", *(f"fine {number}/0" for number in range(6)), "full/0", "full/1"]
    real = os.mkdir

    def mkdir(path: str, mode: int) -> None:
        if path.endswith("full"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        real(path, mode)

    with monkeypatch.context() as patches:
        patches.setattr(os, "mkdir", mkdir)
        storage._groups._places = trio.Semaphore(1)
        failures = await write_all(storage, names)
    assert failures.keys() == set(names[-2:])
    assert all("quota" in told for told in failures.values())
    assert await lengths(storage) == dict.fromkeys(names[:-2], 4)
    assert await write_all(storage, names[-2:]) == {}
    assert await lengths(storage) == dict.fromkeys(names, 4)
    storage.close()
