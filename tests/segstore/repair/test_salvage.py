"""Salvage of containers whose log or chunks are incomplete."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import trio
from foreign_servers.s3 import CREDENTIALS, make_bucket, moto_server

from _fast.log.data_frame import DataFrame
from pravega_wire.commands import TableEntry, TableKey
from pravega_wire.event_framing import frame_event
from pravega_wire.names import container_of, segment_name, transaction_segment_name
from segstore.api import SegmentContainer
from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.container import Container
from segstore.errors import (
    BytesLostError,
    IdentityError,
    LogBehindError,
    NoSuchSegmentError,
    leaf_errors,
)
from segstore.model.attributes import (
    ROLLOVER_SIZE,
    TABLE_INDEX_OFFSET,
    AttributeUpdate,
    AttributeUpdateType,
)
from segstore.model.metadata import ContainerMetadata, SegmentMetadata
from segstore.model.operations import AppendOperation
from segstore.ownership import claims
from segstore.ownership.data_directory import DataDirectory
from segstore.process.assembly import open_containers
from segstore.process.config import MIB, SegmentStoreConfig
from segstore.repair import recover
from segstore.repair.pieces import SegmentPieces
from segstore.repair.recover import RecoveryPlan, StoreRecovery, Tables, open_recovery
from segstore.repair.salvage import (
    OpenTransaction,
    Required,
    RequiredSegment,
    Salvage,
    StreamHead,
    encode_log,
    replay_metadata,
)
from segstore.tables.entries import HEADER_BYTES
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import TableSegments
from segstore.tiers.api import LogAddress
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.journal.files import FilePreparer
from segstore.tiers.memory import MemoryChunkStorage
from segstore.tiers.s3.settings import S3Settings
from support.rare_parameters import mark_rare

NAME = "scope/stream/0.#epoch.0"
OTHER = "scope/other/0.#epoch.0"
TABLE = "scope/_tables/t"
ATTRIBUTE = bytes(range(16))


def config_of(path: Path, **changes: object) -> SegmentStoreConfig:
    fields: dict[str, object] = {
        "data_dir": path / "data",
        "container_count": 1,
        "cache_bytes_max": 32 * MIB,
        "journal_file_bytes": 4 * MIB,
        "drain_seconds": 5,
        **changes,
    }
    return SegmentStoreConfig(**fields)  # type: ignore[arg-type]


@asynccontextmanager
async def living(path: Path, **changes: object) -> AsyncIterator[SegmentContainer]:
    async with (
        open_containers(config_of(path, **changes)) as opener,
        opener(0) as container,
    ):
        yield container


async def recovered(path: Path, **changes: object) -> RecoveryPlan:
    async with open_recovery(config_of(path, **changes)) as recovery:
        planned = await recovery.plan()
        before = [str(each) for each in planned.findings]
        assert planned.problems
        shutil.rmtree(await recovery.run(planned))  # it is named for the second
        assert [str(each) for each in planned.findings] == before
    async with open_recovery(config_of(path, **changes)) as recovery:
        assert (await recovery.plan()).problems == []
    return planned


async def content(container: SegmentContainer, name: str) -> bytes:
    await container.activate(name)
    return b"".join([data async for _, data in readable(container, name)])


async def readable(container: SegmentContainer, name: str) -> AsyncIterator[tuple[int, bytes]]:
    """Yield what can be read of a segment, with its offsets; what is lost is left out."""
    await container.activate(name)
    info = container.segment_info(name)
    offset = info.start_offset
    while offset < info.length:
        try:
            data = bytes((await container.read(name, offset=offset, length_max=MIB)).data)
        except BytesLostError as error:
            offset, before = error.lost_end, offset
            if offset <= before:
                raise
        else:
            yield offset, data
            offset += len(data)


def losses(plan: RecoveryPlan, name: str = NAME) -> list[tuple[int, int]]:
    """Return the ranges of a segment that are told as lost."""
    return [
        (each.offset, each.offset + each.length)
        for each in plan.findings
        if each.what == "lost" and each.segment == name
    ]


async def has_table(container: SegmentContainer, name: str = TABLE) -> dict[bytes, bytes]:
    """Return the keys and values of a table that ``fill`` or ``fill_table`` made."""
    await container.activate(name)
    tables = TableSegments(container, TableSettings())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tables.run)
        keys = [b"key %d" % number for number in range(40)]
        found = await tables.read(name, keys)
        nursery.cancel_scope.cancel()
    return {each.key.key: each.value for each in found if each.key.version >= 0}


async def put(container: SegmentContainer, numbers: range, value: bytes) -> None:
    """Put the same value for some keys of the table."""
    await container.activate(TABLE)
    tables = TableSegments(container, TableSettings())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tables.run)
        for number in numbers:
            await tables.update(TABLE, [TableEntry(TableKey(b"key %d" % number), value)])
        nursery.cancel_scope.cancel()


EVENTS = [frame_event(b"event %d" % number * 20) for number in range(50)]


async def fill(container: SegmentContainer) -> None:
    """Make a stream's segment, one that is sealed and truncated, an empty one, and a table."""
    for name in (NAME, OTHER, "scope/empty/0.#epoch.0"):
        await container.create_segment(name)
    await container.append(
        NAME,
        b"".join(EVENTS),
        attribute_updates=[AttributeUpdate(ATTRIBUTE, AttributeUpdateType.REPLACE, 50)],
    )
    await container.append(OTHER, EVENTS[0] + EVENTS[1])
    await container.truncate_segment(OTHER, offset=len(EVENTS[0]))
    await container.seal_segment(OTHER)
    tables = TableSegments(container, TableSettings())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tables.run)
        await tables.create(TABLE)
        for number in range(30):
            entry = TableEntry(TableKey(b"key %d" % number), b"value %d" % number)
            await tables.update(TABLE, [entry])
        nursery.cancel_scope.cancel()


async def check(container: SegmentContainer, *, attribute: int | None = 50) -> None:
    """Check that all that ``fill`` made is there, and can be changed."""
    assert await content(container, NAME) == b"".join(EVENTS)
    assert await content(container, OTHER) == EVENTS[1]
    info = container.segment_info(OTHER)
    assert (info.start_offset, info.sealed) == (len(EVENTS[0]), True)
    assert await container.get_attributes(NAME, [ATTRIBUTE]) == (
        {} if attribute is None else {ATTRIBUTE: attribute}
    )
    assert await content(container, "scope/empty/0.#epoch.0") == b""
    await check_table(container)
    assert await container.append(NAME, EVENTS[0]) == len(b"".join(EVENTS)) + len(EVENTS[0])


async def check_table(container: SegmentContainer, *, count: int = 30) -> None:
    await container.activate(TABLE)
    tables = TableSegments(container, TableSettings())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tables.run)
        keys = [b"key %d" % number for number in range(count)]
        found = await tables.read(TABLE, keys)
        assert [each.value for each in found] == [b"value %d" % n for n in range(count)]
        await tables.update(TABLE, [TableEntry(TableKey(b"new"), b"entry")])
        [entry] = await tables.read(TABLE, [b"new"])
        assert entry.value == b"entry"
        nursery.cancel_scope.cancel()


def journal(path: Path) -> Path:
    return path / "data" / "journal-0"


async def test_a_lost_journal_after_a_gentle_end_costs_nothing(tmp_path: Path) -> None:
    async with living(tmp_path) as container:
        await fill(container)
    shutil.rmtree(journal(tmp_path))
    plan = await recovered(tmp_path)
    assert [each for each in plan.findings if each.what != "found"] == []
    async with living(tmp_path) as container:
        await check(container)
    async with living(tmp_path) as container:
        assert (await content(container, NAME)).endswith(EVENTS[0])


async def test_inactive_segments_come_back_without_a_journal(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with living(tmp_path, active_segment_seconds=0.1) as container:
            await fill(container)
            assert isinstance(container, Container)
            while len(container.parts.metadata.by_name) > 1:  # a table stays
                await container.flush()
                await trio.sleep(0.2)
    shutil.rmtree(journal(tmp_path))
    await recovered(tmp_path)
    async with living(tmp_path) as container:
        await check(container)


async def test_an_older_journal_of_the_same_life_keeps_all_that_tier_2_has(tmp_path: Path) -> None:
    async with living(tmp_path) as container:
        await fill(container)
        shutil.copytree(journal(tmp_path), tmp_path / "older")
        await container.append(NAME, EVENTS[7])
        await container.create_segment("scope/late/0.#epoch.0")
        await container.append("scope/late/0.#epoch.0", EVENTS[9])
    shutil.rmtree(journal(tmp_path))
    shutil.move(tmp_path / "older", journal(tmp_path))
    await recovered(tmp_path)
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS) + EVENTS[7]
        assert await content(container, "scope/late/0.#epoch.0") == EVENTS[9]
        await check_table(container)


async def kill(
    path: Path, fill_more: Callable[[SegmentContainer], Awaitable[None]], **changes: object
) -> None:
    """Run a container and end it without bringing anything more to tier 2."""
    with trio.CancelScope() as scope:
        async with living(path, **{"drain_seconds": 0, **changes}) as container:
            await fill_more(container)
            scope.cancel()


async def test_what_only_the_journal_has_is_kept_when_tier_2_lost_another_segment(
    tmp_path: Path,
) -> None:
    async with living(tmp_path) as container:
        await fill(container)

    async def append(container: SegmentContainer) -> None:
        await container.append(NAME, EVENTS[3])

    await kill(tmp_path, append)
    [chunk] = (tmp_path / "data" / "storage" / "scope" / "other").rglob("*.E1.*")
    chunk.unlink()
    plan = await recovered(tmp_path)
    [finding] = plan.findings
    assert (finding.segment.partition(".S-")[0], finding.what) == (OTHER, "lost")
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS) + EVENTS[3]
        assert await content(container, OTHER) == b""
        info, length = container.segment_info(OTHER), len(EVENTS[0] + EVENTS[1])
        assert (info.start_offset, info.length, info.sealed) == (length, length, True)
        await check_table(container)


@pytest.mark.parametrize(
    "harm", mark_rare(["cut, and tier 2 has a later copy of metadata", "flip", "cut"], 1)
)
async def test_what_lies_before_the_damage_of_a_journal_is_kept(tmp_path: Path, harm: str) -> None:
    async with living(tmp_path) as container:
        await fill(container)
    written: list[int] = []

    async def append(container: SegmentContainer) -> None:
        for event in EVENTS[:20]:
            await container.append(NAME, event)
            written.append(written_end(newest_file(journal(tmp_path))))
        if "copy" in harm:
            await container.parts.writer.copy_metadata()  # type: ignore[attr-defined]

    await kill(tmp_path, append)
    file = newest_file(journal(tmp_path))
    with file.open("r+b") as opened:
        # In the eleventh of the twenty appends, of which tier 2 has none.
        if harm == "flip":
            opened.seek(written[10] - 20)
            opened.write(b"\xff\xfe")
        else:
            opened.truncate(written[10] - 20)
    plan = await recovered(tmp_path)
    [state] = plan.journals
    assert state.dropped_bytes_max is not None
    assert 0 < state.dropped_bytes_max < 1 << 20
    assert file.name in plan.problems[0]
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS + EVENTS[:10])
        # Where a copy of the metadata has them, clients were told of the lost appends.
        told = EVENTS[:20] if "copy" in harm else EVENTS[:10]
        end = len(b"".join(EVENTS + told))
        lost = (len(b"".join(EVENTS + EVENTS[:10])), end)
        assert container.segment_info(NAME).length == end
        assert losses(plan) == ([lost] if "copy" in harm else [])
        await check_table(container)
        await container.append(NAME, EVENTS[10])
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS + EVENTS[:11])


async def test_files_are_used_of_which_an_earlier_one_was_let_go_behind_the_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []
    let_go: list[Path] = []

    async def write(container: Container) -> None:
        await fill(container)
        await container.create_segment("scope/bulk/0.#epoch.0")
        for _ in range(9):
            await container.append("scope/bulk/0.#epoch.0", bytes(MIB))
        log, held = container.parts.writer._log, list[LogAddress]()

        async def hold(address: LogAddress) -> None:
            held.append(address)

        # Otherwise it may make a new file out of one before the kill.
        monkeypatch.setattr(FilePreparer, "add_freed", lambda *_: None)
        # The container truncates its log when it likes; here the last truncation alone counts.
        with monkeypatch.context() as patched:
            patched.setattr(log, "truncate", hold)
            await container.checkpoint()
            await container.flush()
            let_go.extend(each for each in used_files(tmp_path) if each != used_files(tmp_path)[-1])
            needed_from = held[-1]
            for event in EVENTS[:20]:
                await container.append(NAME, event)
            while len(used_files(tmp_path)) < len(let_go) + 3:
                await container.append("scope/bulk/0.#epoch.0", bytes(MIB))
            ends.append(written_end(used_files(tmp_path)[-1]))
        await log.truncate(needed_from)
        await container.append(NAME, EVENTS[20])

    await kill(tmp_path, write)  # type: ignore[arg-type]
    newest = used_files(tmp_path)[-1]
    with newest.open("r+b") as opened:
        opened.truncate(ends[0] + 100)
    for file in let_go:  # as the journal does itself when it has many
        file.unlink()
    plan = await recovered(tmp_path)
    assert set(plan.journals[0].let_go_or_lost) == {each.name for each in let_go}
    assert {each.what for each in plan.findings} <= {"found"}
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS + EVENTS[:20])
        await check_table(container)


async def test_after_a_wrong_start_on_an_older_tier_2_the_right_one_is_recovered_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong tier 2 alone gets the claim of the wrong start: the right one seems to be older."""
    storage, older, right = tmp_path / "data" / "storage", tmp_path / "older", tmp_path / "right"

    async def release(self: claims.Ownership) -> None:
        """Give nothing back, like a killed process."""

    async def write(container: Container) -> None:
        await fill(container)
        await container.flush()
        shutil.copytree(storage, older)
        for event in EVENTS[:20]:
            await container.append(NAME, event)
        await container.flush()
        await container.checkpoint()
        await container.flush()
        await container.append(NAME, EVENTS[20])

    with monkeypatch.context() as patched:
        patched.setattr(claims.Ownership, "release", release)
        await kill(tmp_path, write)  # type: ignore[arg-type]
    storage.rename(right)
    shutil.copytree(older, storage)
    with pytest.raises(BaseExceptionGroup) as refused:
        async with living(tmp_path):
            pytest.fail("it serves")
    assert "is an older copy" in str(next(leaf_errors(refused.value)))
    shutil.rmtree(storage)
    right.rename(storage)
    with pytest.raises(IdentityError, match=r"tier 2 in .+ is older than"):
        async with living(tmp_path):
            pytest.fail("it serves")
    plan = await recovered(tmp_path)
    assert plan.findings == []
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS + EVENTS[:21])
        await check_table(container)
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS + EVENTS[:21])


async def test_of_a_log_without_its_beginning_what_is_there_is_kept_where_it_was() -> None:
    metadata = ContainerMetadata(0)
    segment = SegmentMetadata(7, NAME)
    segment.length = 5  # in the files that are gone
    metadata.add_active(segment)
    append = AppendOperation(NAME, b"later")
    append.segment_id, append.offset, append.sequence_number = 7, 5, 3
    frame = DataFrame(1024)
    frame.put_whole(*append.encode())
    log = [*encode_log(metadata.snapshot(2), 2), bytes(frame.seal())]

    async def entries() -> AsyncIterator[bytes]:
        for entry in log:
            yield entry

    stored = ChunkMetadata()
    pieces = SegmentPieces(MemoryChunkStorage(), stored, {})
    salvage = Salvage(0, pieces, stored, {}, None, keeps_indexes=False)
    snapshot, _ = await salvage.run(await replay_metadata(0, entries), entries, 0)
    assert [(each.what, each.offset, each.length) for each in salvage.findings] == [("lost", 0, 5)]
    made = ContainerMetadata(0)
    made.restore(snapshot)
    assert (made.by_name[NAME].start_offset, made.by_name[NAME].length) == (5, 10)


@pytest.mark.processes
@pytest.mark.parametrize("harm", ["damaged", pytest.param("lost", marks=pytest.mark.proof)])
async def test_a_store_with_its_history_in_s3_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)

    async def append(container: SegmentContainer) -> None:
        await container.append(NAME, EVENTS[3])

    with moto_server() as endpoint:
        make_bucket(endpoint, "bucket")
        in_s3: dict[str, object] = {
            "tier2": "s3://bucket/a",
            "s3": S3Settings(endpoint_url=endpoint),
        }
        async with living(tmp_path, **in_s3) as container:
            await fill(container)
        await kill(tmp_path, append, **in_s3)
        if harm == "lost":
            shutil.rmtree(journal(tmp_path))
        else:
            file = newest_file(journal(tmp_path))
            with file.open("r+b") as opened:
                opened.truncate(written_end(file) + 10)
        plan = await recovered(tmp_path, **in_s3)
        assert [each for each in plan.findings if each.what != "found"] == []
        async with living(tmp_path, **in_s3) as container:
            kept = EVENTS if harm == "lost" else [*EVENTS, EVENTS[3]]
            assert await content(container, NAME) == b"".join(kept)
            await check_table(container)
        async with living(tmp_path, **in_s3) as container:
            assert await content(container, NAME) == b"".join(kept)


async def test_of_several_journals_only_the_damaged_one_is_replaced(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", container_count=2, journal_count=2)
    names = [f"scope/{number}/0.#epoch.0" for number in range(2)]
    config = config_of(tmp_path, container_count=2, drain_seconds=0)
    with trio.CancelScope() as scope:
        async with open_containers(config) as opener, opener(0) as first, opener(1) as second:
            for name, container in zip(names, (first, second), strict=True):
                await container.create_segment(name)
                for event in EVENTS:
                    await container.append(name, event)
            scope.cancel()
    damaged, sound = tmp_path / "data" / "journal-1", journal(tmp_path)
    file = newest_file(damaged)
    with file.open("r+b") as opened:
        opened.truncate(written_end(file) - 20)
    before = {path.name: path.read_bytes() for path in sound.iterdir()}
    plan = await recovered(tmp_path, container_count=2)
    assert [each.number for each in plan.journals] == [1]
    assert [each.container_id for each in plan.containers] == [1]
    assert {path.name: path.read_bytes() for path in sound.iterdir()} == before
    async with open_containers(config) as opener, opener(0) as first, opener(1) as second:
        assert await content(first, names[0]) == b"".join(EVENTS)
        kept = await content(second, names[1])
        assert kept == b"".join(EVENTS)[: len(kept)]
        assert len(kept) >= len(b"".join(EVENTS[:-1]))
        await second.append(names[1], EVENTS[0])


def newest_file(path: Path) -> Path:
    """Return the file that the journal continues in."""
    return max(path.glob("*.journal"), key=written_end)


def used_files(path: Path) -> list[Path]:
    """Return the files in which the journal has anything, in order."""
    return [each for each in sorted(journal(path).glob("*.journal")) if written_end(each) > 4096]


def written_end(file: Path) -> int:
    return len(file.read_bytes().rstrip(b"\0"))


async def test_a_segment_ends_with_its_last_whole_event(tmp_path: Path) -> None:
    async with living(tmp_path) as container:
        await fill(container)
    found = (tmp_path / "data" / "storage" / "scope" / "stream").rglob("*.E1.*")
    [chunk] = [each for each in found if "attributes" not in each.name]
    with chunk.open("r+b") as opened:
        opened.truncate(len(b"".join(EVENTS[:20])) + 7)
    plan = await recovered(tmp_path)
    end = len(b"".join(EVENTS))
    assert losses(plan) == [(len(b"".join(EVENTS[:20])), end)]
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS[:20])
        assert await container.append(NAME, EVENTS[4]) == end + len(EVENTS[4])
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS[:20]) + EVENTS[4]


async def test_a_table_ends_with_its_last_whole_entry(tmp_path: Path) -> None:
    async with living(tmp_path) as container:
        await fill(container)
    found = (tmp_path / "data" / "storage" / "scope" / "_tables").rglob("*.E1.*")
    [chunk] = [each for each in found if "attributes" not in each.name]
    with chunk.open("r+b") as opened:
        opened.truncate(chunk.stat().st_size - 3)
    await recovered(tmp_path)
    async with living(tmp_path) as container:
        await check_table(container, count=29)


async def test_a_recovery_that_was_interrupted_can_be_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(tmp_path) as container:
        await fill(container)
    shutil.rmtree(journal(tmp_path))

    def fail(*_: object) -> None:
        raise OSError("interrupted")

    with monkeypatch.context() as patched:
        patched.setattr(recover, "_put_into_place", fail)
        async with open_recovery(config_of(tmp_path)) as recovery:
            with pytest.raises(OSError, match="interrupted"):
                await recovery.run(await recovery.plan(), now=lambda: datetime(2026, 1, 1))
    await recovered(tmp_path)
    async with living(tmp_path) as container:
        await check(container)


class RecoveryEnded(BaseException):
    """The process ends here."""


class Steps:
    """Counts the durable steps of a recovery, and ends it before one of them, or behind it."""

    def __init__(self, patch: pytest.MonkeyPatch, stop_at: int | None = None) -> None:
        self.count = 0
        self.stop_at = stop_at
        self.is_over = False
        for owner, name in (
            (Path, "rename"),
            (Path, "mkdir"),
            (os, "replace"),
            (os, "fsync"),
            (shutil, "rmtree"),
        ):
            patch.setattr(owner, name, self._counting(getattr(owner, name)))
        write = FilesystemChunkStorage.write

        async def count_write(*arguments: Any, **options: Any) -> None:
            self._pass()
            await write(*arguments, **options)

        patch.setattr(FilesystemChunkStorage, "write", count_write)

    def _pass(self) -> None:
        if self.is_over:
            raise RecoveryEnded
        self.count += 1
        if self.count == self.stop_at:
            self.is_over = True  # what cleans up behind an error does nothing any more
            raise RecoveryEnded

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def count_call(*arguments: Any, **options: Any) -> Any:
            self._pass()
            return call(*arguments, **options)

        return count_call


def put_back(made: Path, data: Path) -> None:
    """Make a data directory what it was. The files of its locks stay: a copy has others."""
    for each in data.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        elif each.suffix != ".lock":
            each.unlink()
    shutil.copytree(made, data, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.lock"))


async def begin_recovery(path: Path) -> None:
    async with open_recovery(config_of(path)) as recovery:
        await recovery.run(await recovery.plan())


@pytest.mark.proof
async def test_a_recovery_that_ends_before_any_step_is_repeated_without_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two renames neither journal was in its place: what only it had was lost."""
    path, made = tmp_path, tmp_path / "made"
    async with living(path) as container:
        await fill(container)

    async def write(container: SegmentContainer) -> None:
        update = AttributeUpdate(ATTRIBUTE, AttributeUpdateType.REPLACE, 77)
        await container.append(NAME, EVENTS[3], attribute_updates=[update])
        await put(container, range(30, 33), b"value")
        await container.create_segment("scope/late/0.#epoch.0")
        await container.seal_segment("scope/late/0.#epoch.0")

    await kill(path, write)
    [chunk] = (path / "data" / "storage" / "scope" / "other").rglob("*.E1.*")
    chunk.unlink()
    shutil.copytree(path / "data", made)
    number, steps_max = 0, 1
    while number < steps_max:
        number += 1
        put_back(made, path / "data")
        with monkeypatch.context() as patch:
            steps = Steps(patch, number)
            try:
                await begin_recovery(path)
            except BaseException as error:
                if not any(isinstance(leaf, RecoveryEnded) for leaf in leaf_errors(error)):
                    raise
                steps_max = number + 1
            assert steps.is_over == (number < steps_max)
        async with open_recovery(config_of(path)) as recovery:
            plan = await recovery.plan()
            if plan.problems:
                assert {each.what for each in plan.findings} <= {"lost"}, (number, plan.findings)
                assert not any("older" in each for each in plan.problems), (number, plan.problems)
                await recovery.run(plan)
        async with open_recovery(config_of(path)) as recovery:
            assert (await recovery.plan()).problems == []
        async with living(path) as container:
            assert await content(container, NAME) == b"".join(EVENTS) + EVENTS[3]
            assert await container.get_attributes(NAME, [ATTRIBUTE]) == {ATTRIBUTE: 77}
            assert await content(container, OTHER) == b""
            assert container.segment_info(OTHER).start_offset == len(EVENTS[0] + EVENTS[1])
            assert await content(container, "scope/late/0.#epoch.0") == b""
            assert container.segment_info("scope/late/0.#epoch.0").sealed
            await check_table(container)
            assert {b"key 30", b"key 31", b"key 32"} <= (await has_table(container)).keys()
        assert list((path / "data").glob("journal-0.*")) == [path / "data" / "journal-0.lock"]
    assert steps_max > 20


def files_in(path: Path) -> dict[Path, bytes]:
    """Return the content of all files below a directory, except for locks."""
    return {
        each: each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file() and each.suffix != ".lock"
    }


async def damage(path: Path) -> None:
    """Leave a store whose tier 2 lacks a chunk, and whose journal has bytes that tier 2 lacks."""
    async with living(path) as container:
        await fill(container)

    async def append(container: SegmentContainer) -> None:
        await container.append(NAME, EVENTS[3])

    await kill(path, append)
    [chunk] = (path / "data" / "storage" / "scope" / "other").rglob("*.E1.*")
    chunk.unlink()


async def test_planning_changes_nothing(tmp_path: Path) -> None:
    await damage(tmp_path)
    before = files_in(tmp_path)
    async with open_recovery(config_of(tmp_path)) as recovery:
        assert (await recovery.plan()).findings
    assert files_in(tmp_path) == before


async def test_a_recovery_backs_up_what_it_replaces(tmp_path: Path) -> None:
    await damage(tmp_path)
    old_journal = files_in(journal(tmp_path))
    storage = tmp_path / "data" / "storage"
    bytes_of_segments, metadata = files_in(storage / "scope"), files_in(storage / "_system")
    async with open_recovery(config_of(tmp_path)) as recovery:
        plan = await recovery.plan()
        backup = await recovery.run(plan)
    saved = {
        each.relative_to(backup / "journal-0"): data
        for each, data in files_in(backup).items()
        if each.is_relative_to(backup / "journal-0")
    }
    assert saved == {each.relative_to(journal(tmp_path)): old_journal[each] for each in old_journal}
    for name in plan.containers[0].stored.names:
        [content_before] = [data for each, data in metadata.items() if name in str(each)]
        assert (backup / name.replace("/", "_")).read_bytes() == content_before
    after = files_in(storage / "scope")
    assert bytes_of_segments.items() <= after.items()


async def test_a_recovered_container_has_a_later_epoch(tmp_path: Path) -> None:
    async with living(tmp_path) as container:
        await fill(container)
    async with living(tmp_path) as container:
        epoch = container.parts.log.epoch  # type: ignore[attr-defined]
    shutil.rmtree(journal(tmp_path))
    await recovered(tmp_path)
    async with living(tmp_path) as container:
        assert container.parts.log.epoch > epoch + 1  # type: ignore[attr-defined]


async def test_two_recoveries_in_the_same_second_have_backups_of_their_own(
    tmp_path: Path,
) -> None:
    backups: list[Path] = []
    for _ in range(2):
        async with living(tmp_path) as container:
            if not backups:
                await fill(container)
        shutil.rmtree(journal(tmp_path))
        async with open_recovery(config_of(tmp_path)) as recovery:
            plan = await recovery.plan()
            backups.append(await recovery.run(plan, now=lambda: datetime(2026, 1, 1)))
        findings = (backups[-1] / "findings.txt").read_text()
        assert all(f"{each}\n" in findings for each in plan.problems)
    assert [each.name for each in backups] == [
        "before-recover-20260101T000000",
        "before-recover-20260101T000000-2",
    ]
    async with living(tmp_path) as container:
        await check(container)


async def test_a_start_between_the_renames_of_a_recovery_says_what_to_do(tmp_path: Path) -> None:
    async with living(tmp_path) as container:
        await fill(container)
    journal(tmp_path).rename(tmp_path / "data" / "journal-0.recovered")
    with pytest.raises(IdentityError, match="a recovery was interrupted; run segstore recover"):
        async with living(tmp_path):
            pass
    plan = await recovered(tmp_path)
    assert plan.findings == []
    async with living(tmp_path) as container:
        await check(container)


@pytest.mark.parametrize("ends_after", mark_rare([1, 0, 2], 1))
async def test_the_controllers_tables_are_recovered_before_what_their_updates_follow_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_after: int
) -> None:
    """The losses that tell that a transaction is aborted are no losses any more when the journal
    of its segments was recovered."""
    DataDirectory.open(tmp_path / "data", container_count=2, journal_count=2)
    config = config_of(tmp_path, container_count=2)
    stream = next(
        name
        for name in (segment_name("scope", str(each), 0) for each in range(99))
        if container_of(name, 2) == container_of(transaction_segment_name(name, bytes(16)), 2) == 0
    )
    transaction = transaction_segment_name(stream, bytes(16))
    table = next(
        name
        for name in (f"_system/_tables/controller/t{each}" for each in range(9))
        if container_of(name, 2) == 1
    )
    async with open_containers(config) as opener, opener(0) as first, opener(1) as second:
        for name in (stream, transaction):
            await first.create_segment(name)
            await first.append(name, EVENTS[0])
            await first.append(name, EVENTS[1])
        tables = TableSegments(second, TableSettings())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tables.run)
            await tables.create(table)
            for key in (b"head", b"transaction"):
                await tables.update(table, [TableEntry(TableKey(key), b"0")])
            nursery.cancel_scope.cancel()
    end = len(EVENTS[0] + EVENTS[1])
    for chunk in (tmp_path / "data" / "storage" / "scope").rglob("*.E1.*"):
        chunk.unlink()
    seen: list[dict[bytes, bytes]] = []

    def find_required(tables: Tables) -> Required:
        seen.append(tables[table])
        head, state = int(tables[table][b"head"]), tables[table][b"transaction"]

        def move(begins: Mapping[str, int]) -> list[tuple[bytes, bytes]]:
            return [(b"head", b"%d" % begins[stream])]

        found = Required(
            [RequiredSegment(stream, head, False)],
            heads=[StreamHead("scope/0", {stream: head}, table, move)],
        )
        if state == b"0":
            key = b"transaction"
            found.transactions.append(
                OpenTransaction("transaction 1", (transaction,), table, key, b"aborted")
            )
        return found

    make_journal, ended = StoreRecovery._make_journal, 0

    async def make_some(*arguments: Any) -> None:
        nonlocal ended
        if ended == ends_after:
            raise RecoveryEnded
        ended += 1
        await make_journal(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StoreRecovery, "_make_journal", make_some)
        async with open_recovery(config) as recovery:
            plan = await recovery.plan(find_required=find_required)
            assert "the head of scope/0 there at 0: it is moved" in str(plan.problems)
            try:
                await recovery.run(plan)
            except RecoveryEnded:
                assert ends_after < 2
    async with open_recovery(config) as recovery:
        plan = await recovery.plan(find_required=find_required)
        assert bool(plan.problems) == (ends_after < 2)
        if plan.problems:
            await recovery.run(plan)
    async with open_recovery(config) as recovery:
        assert (await recovery.plan(find_required=find_required)).problems == []
    assert seen[-1] == {b"head": b"%d" % end, b"transaction": b"aborted"}


USUAL_REMAINS = {("nothing", True), ("the end", True), ("both ends", False)}
"""Each kind of loss, with and without a kill; ``make proof`` tries all combinations."""


@pytest.mark.parametrize(
    ("kept", "is_killed"),
    [
        pytest.param(*each, marks=() if each in USUAL_REMAINS else pytest.mark.proof)
        for each in product(("nothing", "the end", "the beginning", "both ends"), (False, True))
    ],
)
async def test_what_is_left_of_a_transaction_can_be_merged(
    tmp_path: Path, kept: str, is_killed: bool
) -> None:
    """A segment without its first bytes began behind them: each merge of it was refused, so its
    commit, and all commits of the stream after it, were tried for ever."""
    sources = [transaction_segment_name(NAME, bytes([n]) * 16) for n in range(2)]
    async with living(tmp_path) as container:
        await fill(container)
        for source in sources:
            await container.create_segment(source, attributes={ROLLOVER_SIZE: 2000})
            for event in EVENTS:
                await container.append(source, event)
        await container.flush()
    chunks = chunks_of(tmp_path, sources[0])
    assert len(chunks) > 4
    taken = {
        "nothing": chunks,
        "the end": chunks[:-2],
        "the beginning": chunks[2:],
        "both ends": chunks[2:-2],
    }
    for chunk in taken[kept]:
        chunk.unlink()
    [(lost_from, lost_until)] = losses(await recovered(tmp_path), sources[0])
    before = len(b"".join(EVENTS))
    is_there = kept != "nothing"

    async def merge(container: SegmentContainer) -> None:
        for name in (NAME, *(sources if is_there else sources[1:])):
            await container.activate(name)
        for source in sources if is_there else sources[1:]:
            await container.seal_segment(source)
            await container.merge_segment(NAME, source)

    if is_killed:
        await kill(tmp_path, merge)
    else:
        async with living(tmp_path) as container:
            await merge(container)
    for _ in range(2):
        async with living(tmp_path) as container:
            await container.activate(NAME)
            with pytest.raises(NoSuchSegmentError):
                container.segment_info(sources[0])
            end = before * (3 if is_there else 2)
            assert container.segment_info(NAME).length == end
            whole = b"".join(EVENTS) * (3 if is_there else 2)
            if is_there:
                whole = whole[: before + lost_from] + whole[before + lost_until :]
            assert await content(container, NAME) == whole
            await container.flush()
    async with open_recovery(config_of(tmp_path)) as recovery:
        assert (await recovery.plan()).problems == []


async def test_of_a_store_without_a_copy_of_its_metadata_bytes_and_tables_come_back(
    tmp_path: Path,
) -> None:
    async with living(tmp_path) as container:
        await fill(container)
    shutil.rmtree(journal(tmp_path))
    for copy in (tmp_path / "data" / "storage" / "_system").rglob("*container*"):
        copy.unlink()
    plan = await recovered(tmp_path)
    # What was truncated before it was flushed is no loss: the record of chunks begins behind it.
    assert {each.what for each in plan.findings} == {"attributes lost", "found"}
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS)
        assert await container.get_attributes(NAME, [ATTRIBUTE]) == {ATTRIBUTE: 50}
        await check_table(container)


# ---- What is proven is kept, and offsets stay where they were ------------------------------------


def chunks_of(path: Path, name: str) -> list[Path]:
    """Return the chunks with a segment's own bytes, by offset."""
    storage = path / "data" / "storage"
    found = (storage / name).parent.rglob(f"{Path(name).name}.S-*.E*")
    return sorted(each for each in found if "attributes" not in each.name)


async def test_a_segment_never_ends_below_its_truncation(tmp_path: Path) -> None:
    """Events that were written after the recovery were below the head: nobody ever read them."""
    head, end = len(b"".join(EVENTS[:30])), len(b"".join(EVENTS))
    async with living(tmp_path) as container:
        await fill(container)
        await container.truncate_segment(NAME, offset=head)
    [chunk] = chunks_of(tmp_path, NAME)
    chunk.unlink()
    plan = await recovered(tmp_path)
    assert losses(plan) == [(head, end)]
    async with living(tmp_path) as container:
        await container.activate(NAME)
        info = container.segment_info(NAME)
        assert (info.start_offset, info.length) == (end, end)
        assert await container.append(NAME, EVENTS[1]) == end + len(EVENTS[1])
        assert await content(container, NAME) == EVENTS[1]
        assert await container.get_attributes(NAME, [ATTRIBUTE]) == {ATTRIBUTE: 50}
    async with living(tmp_path) as container:
        assert await content(container, NAME) == EVENTS[1]


async def write_behind(path: Path, *, truncate_at: int | None, lost: int) -> None:
    """Put an older tier 2 back, from before ``lost`` events that only the newer one has; behind
    them the journal has twenty more."""
    storage, older = path / "data" / "storage", path / "older"
    async with living(path) as container:
        await fill(container)
    shutil.copytree(storage, older)
    async with living(path) as container:
        await container.activate(NAME)
        for event in EVENTS[:lost]:
            await container.append(NAME, event)
        await put(container, range(10), b"lost")
        if truncate_at is not None:
            await container.truncate_segment(NAME, offset=truncate_at)

    async def append(container: SegmentContainer) -> None:
        await container.activate(NAME)
        for event in EVENTS[:20]:
            await container.append(NAME, event)
        await put(container, range(30, 35), b"later")

    await kill(path, append)
    shutil.rmtree(storage)
    older.rename(storage)


async def test_a_gap_before_the_truncation_is_no_loss(tmp_path: Path) -> None:
    """Whole events in the journal were dropped, because tier 2 ended long before the truncation."""
    head = len(b"".join(EVENTS + EVENTS[:30]))
    await write_behind(tmp_path, truncate_at=head, lost=30)
    plan = await recovered(tmp_path)
    assert losses(plan) == []
    async with living(tmp_path) as container:
        assert [each async for each in readable(container, NAME)] == [(head, b"".join(EVENTS[:20]))]
        await container.append(NAME, EVENTS[3])
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join([*EVENTS[:20], EVENTS[3]])


async def test_events_on_both_sides_of_a_gap_are_kept_where_they_were(tmp_path: Path) -> None:
    await write_behind(tmp_path, truncate_at=None, lost=30)
    before, behind = len(b"".join(EVENTS)), len(b"".join(EVENTS + EVENTS[:30]))
    plan = await recovered(tmp_path)
    assert losses(plan) == [(before, behind)]
    for _ in range(2):
        async with living(tmp_path) as container:
            assert [each async for each in readable(container, NAME)] == [
                (0, b"".join(EVENTS)),
                (behind, b"".join(EVENTS[:20])),
            ]
            with pytest.raises(BytesLostError, match=f"from {before} to {behind} of {NAME} were"):
                await container.read(NAME, offset=before, length_max=MIB)
            await container.truncate_segment(NAME, offset=before + 1)
            info = container.segment_info(NAME)
            assert info.start_offset == before + 1
            return


async def test_a_gap_in_tier_2_is_filled_from_the_journal(tmp_path: Path) -> None:
    """A chunk was flushed, and the log not truncated: it still has the chunk's bytes."""

    async def write(container: SegmentContainer) -> None:
        await container.create_segment(NAME, attributes={ROLLOVER_SIZE: 1000})
        await container.append(NAME, b"".join(EVENTS))
        await container.flush()  # type: ignore[attr-defined]

    await kill(tmp_path, write)
    chunks = chunks_of(tmp_path, NAME)
    assert len(chunks) > 4
    for chunk in (chunks[0], chunks[2], chunks[3]):
        chunk.unlink()
    with chunks[1].open("r+b") as opened:
        opened.truncate(300)
    plan = await recovered(tmp_path)
    assert plan.findings == []
    for _ in range(2):
        async with living(tmp_path) as container:
            assert await content(container, NAME) == b"".join(EVENTS)


async def test_the_record_of_chunks_proves_an_end_without_the_last_chunk_and_the_journal(
    tmp_path: Path,
) -> None:
    """The end went back to what was left, and nothing was told as lost."""
    length = len(b"".join(EVENTS))
    async with living(tmp_path) as container:
        await container.create_segment(NAME, attributes={ROLLOVER_SIZE: 1000})
        await container.append(NAME, b"".join(EVENTS))
    shutil.rmtree(journal(tmp_path))
    for copy in (tmp_path / "data" / "storage" / "_system").rglob("*container*"):
        copy.unlink()
    chunks_of(tmp_path, NAME)[-1].unlink()
    plan = await recovered(tmp_path)
    [(start, end)] = losses(plan)
    assert end == length > start
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS)[:start]
        assert container.segment_info(NAME).length == length
        await container.append(NAME, EVENTS[0])
        assert [offset async for offset, _ in readable(container, NAME)][-1] == length


async def test_a_merged_segment_with_a_foreign_chunk_is_recovered(tmp_path: Path) -> None:
    """A start refused it, and the recovery had nothing to do."""
    source = f"{NAME}#transaction.{1:032x}"

    async def write(container: SegmentContainer) -> None:
        for name in (NAME, source):
            await container.create_segment(name)
        await container.append(source, b"".join(EVENTS))
        await container.flush()  # type: ignore[attr-defined]
        await container.seal_segment(source)
        await container.merge_segment(NAME, source)

    await kill(tmp_path, write)
    with chunks_of(tmp_path, source)[0].open("ab") as opened:
        opened.write(EVENTS[0])
    with pytest.raises(BaseExceptionGroup) as caught:
        async with living(tmp_path):
            pass
    assert isinstance(next(leaf_errors(caught.value)), LogBehindError)
    await recovered(tmp_path)
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS)


async def test_what_follows_a_gap_behind_the_end_that_is_known_is_kept(tmp_path: Path) -> None:
    """A part of an event before the gap was taken for the end of the segment."""
    older = tmp_path / "older"
    async with living(tmp_path) as container:
        await container.create_segment(NAME, attributes={ROLLOVER_SIZE: 1000})
    shutil.copytree(journal(tmp_path), older)
    async with living(tmp_path) as container:
        await container.activate(NAME)
        await container.append(NAME, b"".join(EVENTS))
    shutil.rmtree(journal(tmp_path))
    older.rename(journal(tmp_path))
    for copy in (tmp_path / "data" / "storage" / "_system").rglob("*container*"):
        copy.unlink()
    whole = len(b"".join(EVENTS[:8]))
    with chunks_of(tmp_path, NAME)[1].open("r+b") as opened:
        opened.truncate(whole + 4 - 1000)
    plan = await recovered(tmp_path)
    [(start, end)] = losses(plan)
    assert (start, end > 2000) == (whole, True)
    data = b"".join(EVENTS)
    async with living(tmp_path) as container:
        assert await content(container, NAME) == data[:start] + data[end:]


async def test_readers_of_a_truncated_gap_go_on_behind_it(tmp_path: Path) -> None:
    await write_behind(tmp_path, truncate_at=len(b"".join(EVENTS[:10])), lost=30)
    await recovered(tmp_path)
    behind = len(b"".join(EVENTS + EVENTS[:30]))
    async with living(tmp_path) as container:
        await container.activate(NAME)
        await container.truncate_segment(NAME, offset=behind)
        await container.flush()  # type: ignore[attr-defined]
        assert await content(container, NAME) == b"".join(EVENTS[:20])
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS[:20])


async def test_a_part_behind_an_earlier_gap_is_given_up(tmp_path: Path) -> None:
    """The table with a part of an entry could not be read any more."""
    await write_behind(tmp_path, truncate_at=None, lost=30)
    plan = await recovered(tmp_path)
    gaps = [*losses(plan), *losses(plan, TABLE)]
    assert len(gaps) == 2
    for name, part in ((NAME, 20), (TABLE, 12)):
        with chunks_of(tmp_path, name)[-1].open("r+b") as opened:
            opened.truncate(part)
    plan = await recovered(tmp_path)
    assert [losses(plan)[0][0], losses(plan, TABLE)[0][0]] == [end for _, end in gaps]
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS)
        assert await has_table(container) == {b"key %d" % n: b"value %d" % n for n in range(30)}


async def test_a_compacted_table_keeps_all_that_the_journal_has(tmp_path: Path) -> None:
    """It came back empty: tier 2 ended before the offset up to which it was compacted."""
    storage, older = tmp_path / "data" / "storage", tmp_path / "older"
    async with living(tmp_path) as container:
        await fill(container)
    shutil.copytree(storage, older)

    async def rewrite(container: SegmentContainer) -> None:
        await container.activate(TABLE)
        tables = TableSegments(container, TableSettings())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tables.run)
            begin = container.segment_info(TABLE).length
            for number in range(30):
                entry = TableEntry(TableKey(b"key %d" % number), b"later %d" % number)
                await tables.update(TABLE, [entry])
            await container.truncate_segment(TABLE, offset=begin)
            nursery.cancel_scope.cancel()

    await kill(tmp_path, rewrite)
    shutil.rmtree(storage)
    older.rename(storage)
    plan = await recovered(tmp_path)
    assert losses(plan, TABLE) == []
    async with living(tmp_path) as container:
        assert await has_table(container) == {b"key %d" % n: b"later %d" % n for n in range(30)}


async def compact_and_lose_the_new_entries(
    tmp_path: Path, updates_of: Callable[[int], Sequence[AttributeUpdate]] = lambda begin: ()
) -> int:
    """Fill the table, compact it, and put back the tier 2 of before the compaction.

    Return where the compacted table begins; ``updates_of`` returns what its attributes become.
    """
    storage, older = tmp_path / "data" / "storage", tmp_path / "older"
    async with living(tmp_path) as container:
        await fill(container)
        begin = container.segment_info(TABLE).length
    shutil.copytree(storage, older)
    async with living(tmp_path) as container:
        await put(container, range(10), b"lost")
        await container.truncate_segment(TABLE, offset=begin)
        if updates := updates_of(begin):
            await container.update_attributes(TABLE, updates)
    shutil.rmtree(storage)
    older.rename(storage)
    return begin


async def test_a_compacted_table_whose_new_entries_are_lost_keeps_the_old_ones(
    tmp_path: Path,
) -> None:
    """It came back empty: older entries in tier 2 lay before the offset of the compaction."""
    begin = await compact_and_lose_the_new_entries(tmp_path)
    plan = await recovered(tmp_path)
    [(start, end)] = losses(plan, TABLE)
    assert start == begin
    assert end > begin
    expected = {b"key %d" % n: b"value %d" % n for n in range(30)}
    for _ in range(2):
        async with living(tmp_path) as container:
            assert await has_table(container) == expected
            assert container.segment_info(TABLE).length >= end
            await put(container, range(35, 36), b"new")
        expected[b"key 35"] = b"new"


async def test_a_compacted_table_that_begins_earlier_ends_with_a_whole_entry(
    tmp_path: Path,
) -> None:
    """It kept a part of an entry, and could not be read any more."""
    begin = await compact_and_lose_the_new_entries(
        tmp_path,
        lambda begin: [AttributeUpdate(TABLE_INDEX_OFFSET, AttributeUpdateType.REPLACE, begin)],
    )
    [chunk] = chunks_of(tmp_path, TABLE)
    with chunk.open("r+b") as opened:
        opened.truncate(begin - 10)
    plan = await recovered(tmp_path)
    [(start, _)] = losses(plan, TABLE)
    assert start < begin - 10
    async with living(tmp_path) as container:
        assert await has_table(container) == {b"key %d" % n: b"value %d" % n for n in range(29)}


async def test_a_compacted_table_that_has_lost_everything_goes_on_at_its_end(
    tmp_path: Path,
) -> None:
    async with living(tmp_path) as container:
        await fill(container)
        begin = container.segment_info(TABLE).length
        await put(container, range(10), b"lost")
        await container.truncate_segment(TABLE, offset=begin)
    for chunk in chunks_of(tmp_path, TABLE):
        chunk.unlink()
    plan = await recovered(tmp_path)
    [(start, end)] = losses(plan, TABLE)
    assert begin == start < end
    async with living(tmp_path) as container:
        assert await has_table(container) == {}
        await put(container, range(3), b"new")
        assert await has_table(container) == {b"key %d" % n: b"new" for n in range(3)}


async def test_a_table_keeps_its_entries_on_both_sides_of_a_gap(tmp_path: Path) -> None:
    storage, older = tmp_path / "data" / "storage", tmp_path / "older"

    async with living(tmp_path) as container:
        await fill(container)
    shutil.copytree(storage, older)
    async with living(tmp_path) as container:
        await put(container, range(30, 35), b"lost")
    await kill(tmp_path, lambda container: put(container, range(5), b"later"))
    shutil.rmtree(storage)
    older.rename(storage)
    plan = await recovered(tmp_path)
    [(start, end)] = losses(plan, TABLE)
    assert end - start == 5 * len(b"key 30lost") + 5 * HEADER_BYTES
    expected = {b"key %d" % n: b"value %d" % n for n in range(5, 30)}
    expected |= {b"key %d" % n: b"later" for n in range(5)}
    for _ in range(2):
        async with living(tmp_path) as container:
            assert await has_table(container) == expected
            await put(container, range(35, 36), b"new")
        expected[b"key 35"] = b"new"
