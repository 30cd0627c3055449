"""A recovery leaves long appends in the log, and they are read from there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import (
    ContainerOfflineError,
    DataLogCorruptError,
    SegmentStoreError,
    StorageError,
)
from segstore.tiers.api import Buffer
from segstore.tiers.journal import JournalSettings, contents
from segstore.tiers.memory import MemoryChunkStorage
from support.chunk_owners import next_owner
from support.rare_parameters import mark_rare
from support.simulated.simulated_disk import SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal

MIB = 1024 * 1024
SETTINGS = JournalSettings(file_bytes=4 * MIB, journal_bytes_max=64 * MIB)
NAME, TARGET = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"


class HeldStorage(MemoryChunkStorage):
    """A tier 2 that takes users' bytes only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.held = True

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        if self.held and name.startswith("scope/"):
            await trio.lowlevel.checkpoint()
            raise StorageError(f"{name} is held")
        await super().write(name, offset=offset, data=data, meanwhile=meanwhile)


class Machine:
    """The parts that survive a kill."""

    def __init__(self) -> None:
        self.disk, self.notes = SimulatedDisk(), SimulatedDisk()
        self.chunks = HeldStorage()
        self.cache_manager = CacheManager(StreamingCache(8 * MIB))

    @asynccontextmanager
    async def run(
        self, cache_bytes: int = 8 * MIB, *, with_notes: bool = False
    ) -> AsyncIterator[Container]:
        """Run a container until the process is killed, at the end of the block.

        ``with_notes`` lets the journal note what is in all its complete files but the newest.
        """
        self.cache_manager = CacheManager(StreamingCache(cache_bytes))
        async with (
            open_simulated_journal(
                self.disk, SETTINGS, notes=self.notes if with_notes else None
            ) as journal,
            open_container(
                0, journal, next_owner(self.chunks), self.cache_manager, drain_seconds=0
            ) as container,
        ):
            yield container
            while with_notes and len(self.notes.list_files()) + 2 < (  # noqa: ASYNC110
                journal.log_bytes() // SETTINGS.file_bytes
            ):
                await trio.sleep(0.01)
            self.disk = self.disk.after_kill()


async def content_of(container: Container, name: str) -> bytes:
    info = container.segment_info(name)
    content = b""
    while info.start_offset + len(content) < info.length:
        offset = info.start_offset + len(content)
        read = await container.read(name, offset=offset, length_max=info.length - offset)
        assert read.data
        content += read.data
    return content


async def flushed(container: Container, name: str) -> None:
    with trio.fail_after(30):
        info = container.segment_info(name)
        while info.storage_length < info.length:
            await trio.sleep(0.05)
            info = container.segment_info(name)


def blocks(seed: int, lengths: Sequence[int]) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(length) for length in lengths]


async def test_long_appends_are_left_in_the_log_until_they_are_read() -> None:
    machine, data = Machine(), blocks(1, [5000, 70_000, 1_500_000, 10, 100_000])
    async with machine.run() as container:
        await container.create_segment(NAME)
        for block in data:
            await container.append(NAME, block)
    async with machine.run() as container:
        assert machine.cache_manager.cache.stored_bytes == 10
        assert await content_of(container, NAME) == b"".join(data)
        await container.append(NAME, b"more")
        assert await content_of(container, NAME) == b"".join(data) + b"more"
    async with machine.run() as container:
        assert await content_of(container, NAME) == b"".join(data) + b"more"


async def test_tier_2_gets_from_the_log_what_is_only_there() -> None:
    machine, data = Machine(), blocks(2, [50_000, 10, 900_000, 4096, 300_000] * 4)
    async with machine.run() as container:
        await container.create_segment(NAME)
        for block in data:
            await container.append(NAME, block)
    machine.chunks.held = False
    async with machine.run() as container:
        await flushed(container, NAME)
        # It comes from tier 2 now, and the log is let go of.
        await container.drain()
        assert container.parts.log.bytes_since_truncation < 10_000
        assert (
            container.parts.read_index.index_of(container.parts.metadata.by_name[NAME]).logged
            is None
        )
        assert await content_of(container, NAME) == b"".join(data)
    async with machine.run() as container:
        assert await content_of(container, NAME) == b"".join(data)


async def test_more_than_the_cache_takes_is_recovered_without_tier_2() -> None:
    machine, data = Machine(), blocks(3, [200_000] * 30)
    async with machine.run(cache_bytes=16 * MIB) as container:
        await container.create_segment(NAME)
        for block in data:
            await container.append(NAME, block)
    async with machine.run(cache_bytes=4 * MIB) as container:
        assert container.segment_info(NAME).storage_length == 0
        for _ in range(2):  # what was read is evicted, and read again
            assert await content_of(container, NAME) == b"".join(data)
        machine.chunks.held = False
        await flushed(container, NAME)
        assert await content_of(container, NAME) == b"".join(data)


async def test_room_is_made_while_a_frame_of_short_appends_is_replayed() -> None:
    machine, data = Machine(), blocks(7, [3000] * 2200)
    async with machine.run(cache_bytes=16 * MIB) as container:
        await container.create_segment(NAME)
        outcomes: list[SegmentStoreError | None] = []
        for block in data:
            container.append_nowait(
                NAME, block, on_complete=lambda error, _: outcomes.append(error)
            )
        await container.wait_in_flight(NAME)
        assert outcomes == [None] * len(data)
    machine.chunks.held = False
    async with machine.run(cache_bytes=4 * MIB) as container:
        assert await content_of(container, NAME) == b"".join(data)


async def test_what_is_only_in_the_log_is_merged_truncated_and_deleted() -> None:
    machine = Machine()
    first, second, third = blocks(4, [100_000, 200_000, 300_000])
    async with machine.run() as container:
        for name, block in ((TARGET, first), (NAME, second)):
            await container.create_segment(name)
            await container.append(name, block)
        await container.seal_segment(NAME)
        await container.merge_segment(TARGET, NAME)
        await container.append(TARGET, third)
        await container.create_segment("scope/gone")
        await container.append("scope/gone", first)
        await container.delete_segment("scope/gone")
    merged = first + second + third
    async with machine.run() as container:
        assert machine.cache_manager.cache.stored_bytes == 0
        assert await content_of(container, TARGET) == merged
        await container.truncate_segment(TARGET, offset=150_000)
        assert await content_of(container, TARGET) == merged[150_000:]
    machine.chunks.held = False
    async with machine.run() as container:
        assert await content_of(container, TARGET) == merged[150_000:]
        await flushed(container, TARGET)
        assert await content_of(container, TARGET) == merged[150_000:]
    async with machine.run() as container:
        assert await content_of(container, TARGET) == merged[150_000:]


@pytest.mark.proof
async def test_reads_while_tier_2_takes_what_they_read_find_it() -> None:
    machine, data = Machine(), blocks(5, [300_000] * 12)
    async with machine.run() as container:
        await container.create_segment(NAME)
        for block in data:
            await container.append(NAME, block)
    machine.chunks.held = False
    async with machine.run() as container, trio.open_nursery() as nursery:
        nursery.start_soon(flushed, container, NAME)
        for _ in range(5):
            assert await content_of(container, NAME) == b"".join(data)


async def test_damage_behind_a_recovery_is_told_and_never_read() -> None:
    machine, [data] = Machine(), blocks(6, [500_000])
    async with machine.run() as container:
        await container.create_segment(NAME)
        await container.append(NAME, data)
    async with machine.run() as container:
        [name] = [name for name in machine.disk.list_files() if data in machine.disk.content(name)]
        place = machine.disk.content(name).index(data) + 1234
        machine.disk.overwrite(name, place, bytes([data[1234] ^ 1]))
        with pytest.raises((DataLogCorruptError, ContainerOfflineError), match="damaged"):
            await container.read(NAME, offset=0, length_max=100)


@pytest.fixture
def notes_for_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "FILES_WITHOUT_NOTES", 0)
    monkeypatch.setattr(contents, "NEWEST_FILES", 1)


@pytest.mark.usefixtures("notes_for_few_files")
async def test_what_lies_in_noted_files_is_served_and_reaches_tier_2() -> None:
    lengths = [5000, 700_000, 10, 900_000, 70_000, 3000, 1_000_000] * 6
    machine, data = Machine(), blocks(7, lengths)
    async with machine.run(64 * MIB, with_notes=True) as container:
        await container.create_segment(NAME)
        for block in data:
            await container.append(NAME, block)
    assert len(machine.notes.list_files()) >= 2
    async with machine.run(with_notes=True) as container:
        assert await content_of(container, NAME) == b"".join(data)
    async with machine.run(with_notes=True) as container:
        machine.chunks.held = False
        await flushed(container, NAME)
    async with machine.run(with_notes=True) as container:
        assert await content_of(container, NAME) == b"".join(data)


@pytest.mark.usefixtures("notes_for_few_files")
async def test_damage_in_a_noted_file_is_told_and_never_read() -> None:
    machine, data = Machine(), blocks(8, [900_000] * 20)
    async with machine.run(64 * MIB, with_notes=True) as container:
        await container.create_segment(NAME)
        for block in data:
            await container.append(NAME, block)
    [name] = [name for name in machine.disk.list_files() if data[1] in machine.disk.content(name)]
    assert f"{name.partition('.')[0]}.contents" in machine.notes.list_files()
    place = machine.disk.content(name).index(data[1]) + 1234
    machine.disk.overwrite(name, place, bytes([data[1][1234] ^ 1]))
    started = told = False
    try:
        async with machine.run(with_notes=True) as container:
            started = True
            try:
                result = await container.read(NAME, offset=900_000, length_max=100)
            except (DataLogCorruptError, ContainerOfflineError) as error:
                told = "damaged" in str(error)
            else:
                # The container ends: those who wait for it are answered with nothing.
                assert result.data == b""
                await trio.sleep_forever()
    except* DataLogCorruptError:
        told = True  # tier 2's writer has met it
    assert started
    assert told


@pytest.mark.usefixtures("notes_for_few_files")
@pytest.mark.parametrize("with_notes", [False, True])
@pytest.mark.parametrize("seed", mark_rare(range(8), 2))
async def test_random_lives_lose_and_double_nothing(seed: int, with_notes: bool) -> None:
    machine, random, expected = Machine(), Random(seed), dict[str, bytes]()
    for _ in range(6):
        machine.chunks.held = random.random() < 0.6
        async with machine.run(
            cache_bytes=random.choice([4, 16]) * MIB, with_notes=with_notes
        ) as container:
            for name, content in expected.items():
                assert await content_of(container, name) == content
            for _ in range(random.randrange(12)):
                name = random.choice([NAME, TARGET])
                if name not in expected:
                    await container.create_segment(name)
                    expected[name] = b""
                block = random.randbytes(random.choice([1, 3000, 4096, 50_000, 1_200_000]))
                await container.append(name, block)
                expected[name] += block
                if machine.cache_manager.cache.used_bytes > 2 * MIB:
                    machine.chunks.held = False
            await trio.sleep(random.choice([0, 0.6]))
