"""Logs that move to other journals: nothing is lost, whenever that is interrupted."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from pravega_wire.names import container_of
from segstore.api import SegmentContainer
from segstore.errors import (
    DataDirectoryError,
    DataLogError,
    IdentityError,
    LogBehindError,
    StorageUnreachableError,
    leaf_errors,
)
from segstore.ownership.data_directory import (
    FORMAT_VERSION,
    MOVED_VERSION,
    VERSION_FILE,
    DataDirectory,
)
from segstore.ownership.journal_identity import read_journal_identity
from segstore.process import log_moves
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig, ThrottleSettings
from segstore.process.log_moves import share_out_logs
from support.local_tiers import read_all

MIB = 1024 * 1024
CONTAINERS = 4


def segments_of_containers(count: int) -> list[str]:
    """Return a segment in each container, by the containers' numbers."""
    found: dict[int, str] = {}
    for number in range(1000):
        name = f"scope/stream-{number}/0.#epoch.0"
        found.setdefault(container_of(name, count), name)
    return [found[each] for each in range(count)]


SEGMENTS = segments_of_containers(CONTAINERS)


class Store:
    """A data directory, and how stores are started in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.storage = path / "tier-2"

    def config(self, containers: Sequence[int] | None = None, **more: Any) -> SegmentStoreConfig:
        settings: dict[str, Any] = {
            "data_dir": self.data,
            "storage_dir": self.storage,
            "container_count": CONTAINERS,
            "container_ids": None if containers is None else tuple(containers),
            "cache_bytes_max": 64 * MIB,
            "journal_file_bytes": 2 * MIB,
            "journal_bytes_max": 64 * MIB,
            "active_segments_max": 100,
            "throttling": ThrottleSettings(attributes_dirty_max=1000),
        }
        return SegmentStoreConfig(**{**settings, **more})

    @property
    def directory(self) -> DataDirectory:
        return DataDirectory.read(self.data)

    @asynccontextmanager
    async def run(self, store_count: int) -> AsyncIterator[list[SegmentContainer]]:
        """Run this many stores, each with its share; yield the containers by number."""
        shares = await share_out_logs(self.config(), store_count)
        async with AsyncExitStack() as stack:
            containers: dict[int, SegmentContainer] = {}
            for mine in shares.containers:
                opener = await stack.enter_async_context(open_containers(self.config(mine)))
                for each in mine:
                    containers[each] = await stack.enter_async_context(opener(each))
            yield [containers[each] for each in range(CONTAINERS)]

    async def live(self, store_count: int, text: bytes, *, expected: bytes) -> None:
        """Start so many stores, see that all segments have what they should, append, and stop."""
        async with self.run(store_count) as containers:
            await check_and_append(containers, text, expected=expected)

    async def live_until_killed(self, store_count: int, text: bytes, *, expected: bytes) -> None:
        """Do the same in a process of its own, up to a kill -9."""
        await run_until_killed(live_and_die, self.path, store_count, text, expected)

    def copy(self, to: Path) -> Store:
        """Copy the store with all its files, as a kill at this moment would leave them."""
        shutil.copytree(self.path, to, copy_function=copy_in_place)
        return Store(to)


async def check_and_append(
    containers: Sequence[SegmentContainer], text: bytes, *, expected: bytes
) -> None:
    for container, segment in zip(containers, SEGMENTS, strict=True):
        if expected:
            assert await read_all(container, segment) == expected
        else:
            await container.create_segment(segment)
        await container.append(segment, text)


def copy_in_place(source: str, target: str) -> None:
    """Copy a file as if it had always been here: locks tell a copy by their numbers."""
    if source.endswith(".lock"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


PROCESSES = multiprocessing.get_context("forkserver")
"""Processes that begin without threads of ours, after the imports."""
PROCESSES.set_forkserver_preload([__name__])


async def run_until_killed(function: Callable[..., object], *arguments: Any) -> bool:
    """Run a function in a process that kills itself; whether it did."""
    process = PROCESSES.Process(target=function, args=arguments)
    process.start()
    await trio.to_thread.run_sync(process.join)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def live_and_die(path: Path, store_count: int, text: bytes, expected: bytes) -> None:
    async def live() -> None:
        async with Store(path).run(store_count) as containers:
            await check_and_append(containers, text, expected=expected)
            os.kill(os.getpid(), signal.SIGKILL)

    trio.run(live)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


# ---- Other counts of stores ----------------------------------------------------------------------


async def test_containers_move_between_counts_of_stores(store: Store, tmp_path: Path) -> None:
    expected = b""
    for number, store_count in enumerate([1, 2, 1, 3, 2, 4, 1, 2]):
        text = b"%d stores, " % store_count
        await store.live(store_count, text, expected=expected)
        expected += text
        assert store.directory.format_version == (MOVED_VERSION if number else FORMAT_VERSION)
    assert len(set(store.directory.journals)) <= CONTAINERS


@pytest.mark.processes
async def test_killed_stores_go_on_in_other_numbers(store: Store) -> None:
    """The bytes that tier 2 does not have move with the logs."""
    expected = b""
    for store_count in [1, 2, 3, 1, 2, 4, 3, 1]:
        text = b"%d, " % store_count * 1000
        await store.live_until_killed(store_count, text, expected=expected)
        expected += text


async def test_a_new_directory_is_made_for_so_many_stores(store: Store) -> None:
    DataDirectory.open(store.data, container_count=CONTAINERS, journal_count=2)
    await store.live(2, b"one", expected=b"")
    assert (store.directory.layout, store.directory.format_version) == (0, FORMAT_VERSION)
    assert store.directory.journals_of_containers() == (0, 1, 0, 1)
    await store.live(2, b"two", expected=b"one")
    await store.live(1, b"two", expected=b"onetwo")


async def test_stores_that_are_new_start_at_the_same_time(store: Store) -> None:
    DataDirectory.open(store.data, container_count=CONTAINERS, journal_count=4)
    containers: dict[int, SegmentContainer] = {}
    started = trio.Event()

    async def run(number: int, *, task_status: trio.TaskStatus[None]) -> None:
        async with (
            open_containers(store.config([number])) as opener,
            opener(number) as container,
        ):
            containers[number] = container
            if len(containers) == CONTAINERS:
                started.set()
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for number in range(CONTAINERS):
            nursery.start_soon(nursery.start, run, number)
        await started.wait()
        in_order = [containers[each] for each in range(CONTAINERS)]
        await check_and_append(in_order, b"one", expected=b"")
        nursery.cancel_scope.cancel()
    await store.live(1, b"two", expected=b"one")


async def test_a_log_that_nobody_has_opened_moves_too(store: Store) -> None:
    async with open_containers(store.config([0])) as opener, opener(0):
        pass
    await store.live(2, b"one", expected=b"")
    await store.live(1, b"two", expected=b"one")


@pytest.mark.processes
async def test_a_journal_lets_go_of_what_has_moved(store: Store) -> None:
    await store.live_until_killed(1, b"x" * 3 * MIB, expected=b"")
    await store.live(2, b"y", expected=b"x" * 3 * MIB)

    async def bytes_of(journal: int, container: int) -> int:
        path = store.directory.journal_path(journal)
        async with log_moves.open_journal(path) as opened:
            return (await opened.open_log(container)).bytes_since_truncation

    directory = store.directory
    for container in range(CONTAINERS):
        for journal in set(directory.journals) - {directory.journal_of(container)}:
            assert await bytes_of(journal, container) == 0


@pytest.mark.proof
async def test_a_journal_without_a_log_is_removed(store: Store) -> None:
    """Going to and fro between counts of stores does not fill the disk."""
    await store.live(1, b"one", expected=b"")
    expected = b"one"
    for store_count in [3, 2, 4, 3, 2, 4, 3, 4, 2, 3]:
        await store.live(store_count, b"x", expected=expected)
        expected += b"x"
        there = {int(each.name.removeprefix("journal-")) for each in journals_of(store)}
        assert there == set(store.directory.journals_of_containers())


def journals_of(store: Store) -> list[Path]:
    return [each for each in store.data.glob("journal-*") if each.name[8:].isdecimal()]


# ---- Kills in the middle of a move ---------------------------------------------------------------


class Deadly:
    """A counter of the steps that change files.

    It ends the process, at once, before one of them.
    """

    STEPS = ("mkdir", "rename", "replace", "unlink", "rmdir", "link", "write", "pwrite", "fsync")

    def __init__(self, dies_at: int) -> None:
        self.count = 0
        self.dies_at = dies_at
        for name in self.STEPS:
            setattr(os, name, self._counted(getattr(os, name)))
        append = log_moves._append

        async def counted_append(*arguments: Any) -> None:
            self.step()
            await append(*arguments)
            self.step()

        log_moves._append = counted_append

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.step()
            return step(*arguments, **options)

        return counted

    def step(self) -> None:
        self.count += 1
        if self.count == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)


def move_and_die(path: Path, store_count: int, dies_at: int) -> None:
    """Move logs in a process of its own, and die before a step."""
    Deadly(dies_at)
    trio.run(share_out_logs, Store(path).config(), store_count)
    os._exit(0)


@pytest.mark.proof
@pytest.mark.processes
async def test_a_move_that_is_killed_at_any_step_loses_nothing(
    store: Store, tmp_path: Path
) -> None:
    text = b"acknowledged" * 1000
    await store.live_until_killed(1, text, expected=b"")
    dies_at, layouts = -1, set()
    was_killed = True
    while was_killed:
        dies_at += 2
        killed = store.copy(tmp_path / "killed")
        was_killed = await run_until_killed(move_and_die, killed.path, 3, dies_at)
        layouts.add(killed.directory.layout)
        await killed.live((dies_at % 3) or 4, b"more", expected=text)
        shutil.rmtree(killed.path)
    assert dies_at > 30
    assert len(layouts) == 2, "some were killed before it counts, some after"


# ---- Refusals ------------------------------------------------------------------------------------


async def refuse(store: Store, kind: type[Exception], store_count: int, *sentences: str) -> None:
    """See that stores are not started, and nothing is lost by the attempt."""
    with pytest.raises((kind, ExceptionGroup)) as caught:
        await store.live(store_count, b"never", expected=b"")
    [error] = leaf_errors(caught.value)
    assert isinstance(error, kind), error
    for sentence in sentences:
        assert sentence in str(error)


async def test_a_missing_journal_is_refused_by_all_counts(store: Store, tmp_path: Path) -> None:
    await store.live(1, b"one", expected=b"")
    await store.live(2, b"two", expected=b"one")
    journal = store.directory.journal_path(1)
    journal.rename(tmp_path / "away")
    for store_count in (1, 2, 3):
        await refuse(store, IdentityError, store_count, "journal 1", "it does not exist")
    (tmp_path / "away").rename(journal)
    await store.live(3, b"three", expected=b"onetwo")


@pytest.mark.proof
async def test_a_foreign_journal_is_refused(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    for each in (other, store):
        await each.live(1, b"one", expected=b"")
        await each.live(2, b"two", expected=b"one")
    journal = store.directory.journal_path(1)
    journal.rename(tmp_path / "away")
    for wrong in (other.directory.journal_path(1), store.directory.journal_path(0)):
        shutil.copytree(wrong, journal)
        for store_count in (1, 2, 4):
            await refuse(store, IdentityError, store_count, "put the right journal there")
        shutil.rmtree(journal)
    (tmp_path / "away").rename(journal)
    await store.live(2, b"three", expected=b"onetwo")


async def test_an_older_journal_is_refused(store: Store, tmp_path: Path) -> None:
    await store.live(1, b"one", expected=b"")
    await share_out_logs(store.config(), 2)
    journals = [store.directory.journal_path(each) for each in range(2)]
    for each in journals:
        shutil.copytree(each, tmp_path / each.name)
    await store.live(2, b"two", expected=b"one")
    for each in journals:
        each.rename(tmp_path / "right")
        shutil.copytree(tmp_path / each.name, each)
        for store_count in (1, 2, 3):
            await refuse(store, IdentityError, store_count, "is older than tier 2")
        shutil.rmtree(each)
        (tmp_path / "right").rename(each)
    await store.live(1, b"three", expected=b"onetwo")


async def test_a_version_file_from_before_a_move_is_refused(store: Store) -> None:
    await store.live(1, b"one", expected=b"")
    version_file = store.data / VERSION_FILE
    before = version_file.read_text()
    await store.live(2, b"two", expected=b"one")
    after = version_file.read_text()
    version_file.write_text(before)
    for store_count in (1, 2, 3):
        await refuse(store, IdentityError, store_count, "segstore.toml is older", "layout 1, not 0")
    version_file.write_text(after)
    await store.live(2, b"three", expected=b"onetwo")


async def test_a_journal_that_the_version_file_does_not_know_is_left_alone(
    store: Store, tmp_path: Path
) -> None:
    await store.live(1, b"one", expected=b"")
    other = Store(tmp_path / "other")
    await other.live(1, b"other", expected=b"")
    stranger = store.directory.journal_path(1)
    shutil.copytree(other.directory.journal_path(0), stranger)
    await refuse(store, IdentityError, 2, f"{stranger} is there already")
    assert read_journal_identity(stranger) is not None
    await store.live(1, b"two", expected=b"one")


async def test_a_log_that_is_older_than_tier_2_does_not_move(store: Store, tmp_path: Path) -> None:
    """Under the later epoch that it gets there nobody could see that any more."""
    await store.live(1, b"one", expected=b"")
    async with open_containers(store.config()) as opener:
        async with opener(3):
            pass
        killed = store.copy(tmp_path / "killed")
        for _ in range(3):
            async with opener(3) as container:
                await container.append(SEGMENTS[3], b"two")
                await container.flush()  # type: ignore[attr-defined]
        shutil.copytree(store.storage, killed.storage, dirs_exist_ok=True)
    for store_count in (2, 3):
        await refuse(killed, LogBehindError, store_count, "container 3", "older")
    assert killed.directory.layout == 0


async def test_a_store_that_runs_keeps_its_logs(store: Store) -> None:
    async with open_containers(store.config([0])):
        await refuse(store, DataDirectoryError, 2, "in use by process")
    assert store.directory.layout == 0


async def test_a_store_does_not_go_on_by_a_layout_that_has_changed(store: Store) -> None:
    await store.live(1, b"one", expected=b"")
    before = store.directory
    await share_out_logs(store.config(), 2)
    with (
        pytest.raises(DataDirectoryError, match="were moved to other journals just now"),
        before.lock_journals([0]),
    ):
        pass


async def test_chunks_in_doubt_keep_the_logs_where_they_are(store: Store) -> None:
    await store.live(1, b"one", expected=b"")
    doubts = store.data / "tier-2-doubts.txt"
    chunk = store.storage / "some.chunk"
    chunk.mkdir()  # cannot be cut off
    doubts.write_text("0 some.chunk .\n")
    await refuse(store, StorageUnreachableError, 2, "some.chunk", "as many stores as before")
    chunk.rmdir()
    await store.live(2, b"two", expected=b"one")
    assert not doubts.exists()


async def test_doubts_belong_to_a_journal(store: Store) -> None:
    """A store that starts cuts nothing off that another one uses."""
    await store.live(2, b"one", expected=b"")
    chunk = store.storage / "some.chunk"
    chunk.write_bytes(b"12345")
    doubts = store.data / "tier-2-doubts-1.txt"
    doubts.write_text("2 some.chunk .\n")
    shares = await share_out_logs(store.config(), 2)
    async with open_containers(store.config(shares.containers[0])):
        assert chunk.read_bytes() == b"12345"
    async with open_containers(store.config(shares.containers[1])):
        assert chunk.read_bytes() == b"12"
    assert not doubts.exists()


@pytest.mark.processes
async def test_logs_that_one_journal_cannot_take_do_not_move(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"acknowledged" * 1000
    await store.live_until_killed(1, text, expected=b"")
    config = store.config()
    with monkeypatch.context() as patch:
        patch.setattr(SegmentStoreConfig, "log_bytes_max", len(text))
        with pytest.raises((DataLogError, ExceptionGroup)) as caught:
            await share_out_logs(config, 2)
    [error] = leaf_errors(caught.value)
    assert "too long for one journal" in str(error)
    await store.live(2, b"more", expected=text)
