"""A container that fails goes offline alone, says why, and comes back with all that was durable."""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from _fast.cache.streaming_cache import StreamingCache
from segstore.api import SegmentContainer
from segstore.cache.manager import CacheManager
from segstore.container import open_container
from segstore.errors import (
    ContainerOfflineError,
    DataLogCorruptError,
    LogBehindError,
    NoContainerLeftError,
    StorageAbsentError,
    StorageDamagedError,
    StorageError,
    leaf_errors,
)
from segstore.ownership.data_directory import DataDirectory
from segstore.process.assembly import open_containers
from segstore.process.config import MIB, SegmentStoreConfig
from segstore.process.registry import ContainerRegistry, ContainerState
from segstore.tables.settings import TableSettings
from segstore.testing.faults.faulty_disk import FaultyDisk
from segstore.tiers.api import ChunkStorage, DurableDataLogFactory
from segstore.tiers.journal.disk import Disk, LocalDisk
from segstore.tiers.journal.files import IDENTITY_FILE
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from support.chunk_owners import next_owner
from support.faults.faulty_chunks import Fault, FaultyChunkStorage
from support.faults.hidden_chunks import HidingChunkStorage

CONTAINER_COUNT = 4
IN_0, IN_1 = "examples/test/0", "examples/test/1"


@asynccontextmanager
async def hosted(
    path: Path,
    *,
    data_logs: DurableDataLogFactory | None = None,
    chunk_storage: ChunkStorage | None = None,
    disk_of: Callable[[Path], Disk] = LocalDisk,
    container_ids: tuple[int, ...] = (0, 1),
) -> AsyncIterator[ContainerRegistry]:
    config = SegmentStoreConfig(
        data_dir=path,
        container_count=CONTAINER_COUNT,
        container_ids=container_ids,
        cache_bytes_max=32 * MIB,
        journal_file_bytes=MIB,
        journal_bytes_max=64 * MIB,
        restart_seconds_min=0.05,
        restart_seconds_max=0.2,
        drain_seconds=1,
    )
    async with open_containers(
        config, data_logs=data_logs, chunk_storage=chunk_storage, disk_of=disk_of
    ) as opener:
        registry = ContainerRegistry(
            opener,
            container_count=CONTAINER_COUNT,
            container_ids=container_ids,
            tables=config.tables,
            restart_seconds_min=config.restart_seconds_min,
            restart_seconds_max=config.restart_seconds_max,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registry.run)
            await registry.wait_until_tried()
            yield registry
            nursery.cancel_scope.cancel()


async def content(registry: ContainerRegistry, name: str) -> bytes:
    container = registry.container_for(name)
    length = container.segment_info(name).length
    parts = []
    offset = 0
    while offset < length:
        parts.append((await container.read(name, offset=offset, length_max=MIB)).data)
        offset += len(parts[-1])
    return b"".join(parts)


async def test_a_failing_journal_takes_its_containers_offline_and_no_others(
    tmp_path: Path,
) -> None:
    DataDirectory.open(tmp_path, container_count=CONTAINER_COUNT, journal_count=2)
    disks: dict[str, FaultyDisk] = {}

    def disk_of(path: Path) -> FaultyDisk:
        # The error is the disk's: another opening of the journal meets it too.
        return disks.setdefault(path.name, FaultyDisk(path))

    with trio.fail_after(120):
        async with hosted(tmp_path, disk_of=disk_of) as registry:
            for name in (IN_0, IN_1):
                await registry.container_for(name).create_segment(name)
                await registry.container_for(name).append(name, b"durable")
            other = registry.container_for(IN_1)
            disks["journal-0"].error = errno.EIO
            with capture_logs() as logs:
                with pytest.raises(ContainerOfflineError):
                    await registry.container_for(IN_0).append(IN_0, b" lost")
                while registry.hosted(0).is_online:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                # Several attempts fail meanwhile; the other container does not notice.
                for _ in range(20):
                    await other.append(IN_1, b".")
                    await trio.sleep(0.02)
                while not any(line["event"] == "journal failed" for line in logs):  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert registry.container_for(IN_1) is other
            with pytest.raises(ContainerOfflineError):
                registry.container_for(IN_0)
            status = registry.hosted(0).status
            assert status.state is not ContainerState.ONLINE
            assert "Input/output error" in status.failure
            assert registry.hosted(1).status.failure == ""
            disks["journal-0"].error = None
            await registry.hosted(0).wait_online()
            assert registry.hosted(0).status.state is ContainerState.ONLINE
            assert await content(registry, IN_0) == b"durable"
            assert await registry.container_for(IN_0).append(IN_0, b", again") == 14
            assert await content(registry, IN_1) == b"durable" + 20 * b"."
        async with hosted(tmp_path) as registry:
            assert await content(registry, IN_0) == b"durable, again"


async def test_a_journal_whose_disk_has_gone_is_waited_for_and_never_made_anew(
    tmp_path: Path,
) -> None:
    disks: list[FaultyDisk] = []

    def disk_of(path: Path) -> FaultyDisk:
        disks.append(FaultyDisk(path))
        return disks[-1]

    journal, away = tmp_path / "journal-0", tmp_path / "away"
    with trio.fail_after(120):
        async with hosted(tmp_path, disk_of=disk_of) as registry:
            await registry.container_for(IN_0).create_segment(IN_0)
            await registry.container_for(IN_0).append(IN_0, b"durable")
            journal.rename(away)
            journal.mkdir()
            disks[0].error = errno.EIO
            with pytest.raises(ContainerOfflineError):
                await registry.container_for(IN_0).append(IN_0, b" lost")
            while "identity.toml is not there" not in registry.hosted(0).status.failure:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert list(journal.iterdir()) == []
            journal.rmdir()
            away.rename(journal)
            await registry.hosted(0).wait_online()
            assert await content(registry, IN_0) == b"durable"


async def test_damage_that_a_running_store_meets_in_its_only_journal_ends_it(
    tmp_path: Path,
) -> None:
    disks: list[FaultyDisk] = []

    def disk_of(path: Path) -> FaultyDisk:
        disks.append(FaultyDisk(path))
        return disks[-1]

    async def live() -> None:
        async with hosted(tmp_path, disk_of=disk_of) as registry:
            for name in (IN_0, IN_1):
                await registry.container_for(name).create_segment(name)
            damage_first_file(tmp_path / "journal-0")
            disks[0].error = errno.EIO
            with pytest.raises(ContainerOfflineError):
                await registry.container_for(IN_0).append(IN_0, b"lost")
            await trio.sleep_forever()

    with (
        trio.fail_after(60),
        pytest.RaisesGroup(
            pytest.RaisesExc(NoContainerLeftError, match=r"journal 0: .*\.journal, offset \d+"),
            flatten_subgroups=True,
        ),
    ):
        await live()


def damage_first_file(journal: Path) -> None:
    """Damage the disk: it loses the first half of the journal."""
    [file] = sorted(journal.glob("*.journal"))[:1]
    with file.open("r+b") as opened:
        opened.write(bytes(file.stat().st_size // 2))


async def test_a_journal_that_is_stopped_has_not_failed(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with hosted(tmp_path) as registry:
            await registry.container_for(IN_0).create_segment(IN_0)
    assert [line for line in logs if line["log_level"] == "error"] == []


async def test_a_journal_that_cannot_be_opened_at_first_ends_the_start(tmp_path: Path) -> None:
    async with hosted(tmp_path) as registry:
        await registry.container_for(IN_0).create_segment(IN_0)
    [file] = sorted((tmp_path / "journal-0").glob("*"))[:1]
    data = bytearray(file.read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    file.write_bytes(data)
    with pytest.raises(DataLogCorruptError):
        async with hosted(tmp_path):
            pytest.fail("it opened")


async def test_damage_in_one_journal_at_the_start_leaves_only_its_containers_offline(
    tmp_path: Path,
) -> None:
    DataDirectory.open(tmp_path, container_count=CONTAINER_COUNT, journal_count=2)
    async with hosted(tmp_path) as registry:
        for name in (IN_0, IN_1):
            await registry.container_for(name).create_segment(name)
    [file] = sorted((tmp_path / "journal-0").glob("*"))[:1]
    whole = file.read_bytes()
    file.write_bytes(bytes(len(whole) // 2) + whole[len(whole) // 2 :])
    with trio.fail_after(60):
        async with hosted(tmp_path) as registry:
            assert await registry.container_for(IN_1).append(IN_1, b"served") == 6
            with pytest.raises(ContainerOfflineError):
                registry.container_for(IN_0)
            status = registry.hosted(0).status
            assert status.state is ContainerState.FAILED
            assert "journal 0: " in status.failure
            assert file.name in status.failure
            # It is tried again: whoever brings the file back need not start the process anew.
            file.write_bytes(whole)
            await registry.hosted(0).wait_online()
            assert await registry.container_for(IN_0).append(IN_0, b"again") == 5


async def test_a_container_recovers_when_a_tier_2_that_refused_writes_takes_them_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    away = False
    faulty = FaultyChunkStorage(
        MemoryChunkStorage(),
        next_fault=lambda call: Fault.REFUSED if away and call == "write" else Fault.NONE,
    )
    logs = MemoryDataLogFactory()
    async with hosted(tmp_path, data_logs=logs, chunk_storage=faulty) as registry:
        await registry.container_for(IN_0).create_segment(IN_0)
        await registry.container_for(IN_0).append(IN_0, b"stored")
        await trio.sleep(10)
        away = True
        await registry.container_for(IN_0).append(IN_0, b", logged")
    async with hosted(tmp_path, data_logs=logs, chunk_storage=faulty) as registry:
        for _ in range(20):
            await trio.sleep(1)
            status = registry.hosted(0).status
            assert status.state is not ContainerState.ONLINE
            assert status.failure.startswith("StorageError: ")
        assert status.failure_count > 20
        away = False
        await registry.hosted(0).wait_online()
        assert await content(registry, IN_0) == b"stored, logged"
        assert await registry.container_for(IN_0).append(IN_0, b".") == 15


async def test_a_tier_2_that_is_another_makes_a_container_recover_alone(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    strange = False
    memory = MemoryChunkStorage()
    faulty = FaultyChunkStorage(
        memory, next_fault=lambda call: Fault.STRANGE if strange and call == "write" else Fault.NONE
    )
    logs = MemoryDataLogFactory()
    async with hosted(tmp_path, data_logs=logs, chunk_storage=faulty) as registry:
        for name in (IN_0, IN_1):
            await registry.container_for(name).create_segment(name)
        other = registry.container_for(IN_1)
        await trio.sleep(20)
        strange = True
        await registry.container_for(IN_0).append(IN_0, bytes(5 * MIB))
        while registry.hosted(0).status.failure_count == 0:  # noqa: ASYNC110
            await trio.sleep(0.5)
        assert "InvalidChunkOffsetError" in registry.hosted(0).status.failure
        strange = False
        await registry.hosted(0).wait_online()
        assert registry.container_for(IN_1) is other
        assert registry.hosted(1).status.failure_count == 0
        await trio.sleep(20)
        assert await content(registry, IN_0) == bytes(5 * MIB)
        info = registry.container_for(IN_0).segment_info(IN_0)
        assert info.storage_length == info.length


async def test_a_failing_read_of_tier_2_costs_that_read_alone(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    failing = False
    faulty = FaultyChunkStorage(
        MemoryChunkStorage(),
        next_fault=lambda call: Fault.REFUSED if failing and call == "read" else Fault.NONE,
    )
    logs = MemoryDataLogFactory()
    async with hosted(tmp_path, data_logs=logs, chunk_storage=faulty) as registry:
        await registry.container_for(IN_0).create_segment(IN_0)
        await registry.container_for(IN_0).append(IN_0, b"history")
    async with hosted(tmp_path, data_logs=logs, chunk_storage=faulty) as registry:
        failing = True
        with pytest.raises(StorageError):
            await content(registry, IN_0)
        failing = False
        assert await content(registry, IN_0) == b"history"
        assert registry.hosted(0).status.failure_count == 0


async def test_a_recovery_tells_its_stages_and_reads_what_tier_2_does_not_have(
    autojump_clock: trio.testing.MockClock,
) -> None:
    small, large = await recovered_after(10), await recovered_after(40)
    assert small["operations"] == 12
    assert large["operations"] == 42
    assert isinstance(small["log_bytes"], int)
    assert large["log_bytes"] == pytest.approx(4 * small["log_bytes"], rel=0.01)
    for stage in ("open_seconds", "replay_seconds", "start_seconds"):
        assert stage in small


async def recovered_after(append_count: int) -> dict[str, object]:
    """Return the report of a recovery of this many appends of which tier 2 has nothing."""
    logs = MemoryDataLogFactory()
    failing = False
    chunks = FaultyChunkStorage(
        MemoryChunkStorage(),
        next_fault=lambda call: Fault.REFUSED if failing and call == "write" else Fault.NONE,
    )
    for count in (append_count, 0):
        manager = CacheManager(StreamingCache(32 * MIB))
        with capture_logs() as lines:
            failing = False
            async with open_container(
                0, logs, next_owner(chunks), manager, drain_seconds=0
            ) as container:
                failing = True
                if count:
                    await container.create_segment("s")
                for _ in range(count):
                    await container.append("s", bytes(100_000))
    [line] = [each for each in lines if each["event"] == "container recovered"]
    return dict(line)


class Openings:
    """An opener of containers that fail as they are told to."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        self.errors = errors
        self.counts = dict.fromkeys(errors, 0)

    @asynccontextmanager
    async def open(self, container_id: int) -> AsyncIterator[SegmentContainer]:
        self.counts[container_id] += 1
        await trio.lowlevel.checkpoint()
        raise self.errors[container_id]
        yield

    def registry(self) -> ContainerRegistry:
        return ContainerRegistry(
            self.open,
            container_count=CONTAINER_COUNT,
            container_ids=tuple(self.errors),
            tables=TableSettings(),
            restart_seconds_min=0.1,
            restart_seconds_max=0.1,
        )


async def test_a_container_that_cannot_be_opened_for_ever_is_tried_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    openings = Openings({0: LogBehindError("the log is older"), 1: StorageError("tier 2 is away")})
    registry = openings.registry()
    with capture_logs() as logs, trio.move_on_after(5):
        await registry.run()
    assert openings.counts[0] == 1
    assert openings.counts[1] > 10
    status = registry.hosted(0).status
    assert (status.state, status.failure) == (
        ContainerState.OFFLINE,
        "LogBehindError: the log is older",
    )
    [line] = [line for line in logs if line["event"] == "container stays offline"]
    assert (line["container"], line["error"]) == (0, status.failure)


async def test_a_store_of_which_no_container_can_be_opened_ends_with_the_reason(
    autojump_clock: trio.testing.MockClock,
) -> None:
    group = ExceptionGroup("", [LogBehindError("the log is older")])
    openings = Openings({0: group, 1: DataLogCorruptError("file x, offset 7")})
    with trio.fail_after(60), pytest.raises(ExceptionGroup) as raised:
        await openings.registry().run()
    [error] = leaf_errors(raised.value)
    assert isinstance(error, NoContainerLeftError)
    assert "no container of this store can be opened: " in str(error)
    assert openings.counts == {0: 1, 1: 1}


async def test_a_container_that_tier_2_refuses_is_looked_at_again_while_others_serve(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Earlier it stayed offline for ever, whatever tier 2 was later."""
    openings = Openings(
        {0: StorageDamagedError("tier 2 lacks bytes"), 1: StorageError("tier 2 is away")}
    )
    registry = openings.registry()
    with trio.move_on_after(5):
        await registry.run()
    assert openings.counts[0] > 10
    status = registry.hosted(0).status
    assert status.state is ContainerState.FAILED
    assert status.failure == "StorageDamagedError: tier 2 lacks bytes"


async def test_a_store_of_which_tier_2_refuses_all_containers_ends_unless_it_may_come_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    damaged = StorageDamagedError("tier 2 lacks bytes")
    with trio.fail_after(60), pytest.raises(ExceptionGroup) as raised:
        await Openings({0: damaged, 1: damaged}).registry().run()
    assert raised.group_contains(NoContainerLeftError, match="tier 2 lacks bytes")
    openings = Openings({0: StorageAbsentError("emptied"), 1: StorageAbsentError("emptied")})
    with trio.move_on_after(5):
        await openings.registry().run()
    assert min(openings.counts.values()) > 10


@pytest.mark.proof
async def test_containers_that_looked_while_tier_2_showed_nothing_come_back(
    tmp_path: Path,
) -> None:
    """Earlier they stayed offline for ever, and the process went on without them."""
    chunks = HidingChunkStorage()
    with trio.fail_after(60):
        async with hosted(tmp_path, chunk_storage=chunks) as registry:
            for segment in (IN_0, IN_1):
                await registry.container_for(segment).create_segment(segment)
                await registry.container_for(segment).append(segment, b"before")
                await registry.container_for(segment).flush()  # type: ignore[attr-defined]
            chunks.listed = frozenset()
            looks = registry.container_for(IN_0)
            await looks.append(IN_0, b", acknowledged")
            with suppress(ContainerOfflineError):
                await looks.checkpoint()  # type: ignore[attr-defined]
            while registry.hosted(0).status.failure_count < 3:  # noqa: ASYNC110 - real time
                await trio.sleep(0.01)
            status = registry.hosted(0).status
            assert "StorageAbsentError" in status.failure
            assert status.state is not ContainerState.OFFLINE
            with pytest.raises(ContainerOfflineError):
                registry.container_for(IN_0)
            assert await content(registry, IN_1) == b"before"
            chunks.listed = None
            await registry.hosted(0).wait_online()
            assert await content(registry, IN_0) == b"before, acknowledged"
        async with hosted(tmp_path, chunk_storage=chunks) as registry:
            assert await content(registry, IN_0) == b"before, acknowledged"


def chunks_of_containers(path: Path) -> list[Path]:
    """Return all files of tier 2, without the claims of whole stores."""
    return [each for each in (path / "storage").rglob("*") if "store$claim" not in each.name]


async def test_an_older_journal_is_refused_however_often_it_is_started(tmp_path: Path) -> None:
    journal, copy = tmp_path / "journal-0", tmp_path / "copy"
    async with hosted(tmp_path) as registry:
        await registry.container_for(IN_0).create_segment(IN_0)
    shutil.copytree(journal, copy)
    for number in range(3):
        async with hosted(tmp_path) as registry:
            await registry.container_for(IN_0).append(IN_0, b"%d" % number)
    shutil.move(journal, tmp_path / "newer")
    shutil.copytree(copy, journal)
    # Files that were put back in place; a whole directory is told by its identity.
    shutil.copy(tmp_path / "newer" / IDENTITY_FILE, journal)
    chunks = sorted(chunks_of_containers(tmp_path))
    for _ in range(8):
        with pytest.raises(ExceptionGroup) as raised:
            async with hosted(tmp_path):
                await trio.sleep(5)
        assert raised.group_contains(NoContainerLeftError, match="epoch 4, .* none after 1")
    assert sorted(chunks_of_containers(tmp_path)) == chunks
    shutil.copy(journal / IDENTITY_FILE, tmp_path / "newer")
    shutil.rmtree(journal)
    shutil.move(tmp_path / "newer", journal)
    async with hosted(tmp_path) as registry:
        assert await content(registry, IN_0) == b"012"


async def test_a_tier_2_that_is_ahead_of_the_log_of_the_same_life_is_refused(
    tmp_path: Path,
) -> None:
    journal, copy = tmp_path / "journal-0", tmp_path / "copy"
    with trio.fail_after(60):
        async with hosted(tmp_path) as registry:
            await registry.container_for(IN_0).create_segment(IN_0)
            await registry.container_for(IN_0).append(IN_0, b"known")
            # A file that is being allocated has another name in a moment.
            shutil.copytree(journal, copy, ignore=shutil.ignore_patterns("*.new"))
            await registry.container_for(IN_0).append(IN_0, b", forgotten")
    shutil.rmtree(journal)
    shutil.move(copy, journal)
    reason = "tier 2 has 16 bytes of examples/test/0, and the log only 5"
    with trio.fail_after(60), pytest.raises(ExceptionGroup) as raised:
        async with hosted(tmp_path):
            await trio.sleep(5)
    # The other container is not served from such a journal either.
    assert raised.group_contains(NoContainerLeftError, match=reason)
