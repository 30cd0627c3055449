"""Salvage of containers whose log or chunks are incomplete."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest
import trio

from _fast.log.data_frame import DataFrame
from pravega_wire.commands import TableEntry, TableKey
from pravega_wire.event_framing import frame_event
from segstore.api import SegmentContainer
from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.container import Container
from segstore.errors import IdentityError, leaf_errors
from segstore.model.attributes import AttributeUpdate, AttributeUpdateType
from segstore.model.metadata import ContainerMetadata, SegmentMetadata
from segstore.model.operations import AppendOperation
from segstore.process import identity
from segstore.process.assembly import open_containers
from segstore.process.config import MIB, SegmentStoreConfig
from segstore.process.data_directory import DataDirectory
from segstore.repair import recover
from segstore.repair.recover import RecoveryPlan, open_recovery
from segstore.repair.salvage import PlannedStorage, Salvage, encode_log, replay_metadata
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import TableSegments
from segstore.testing.s3_servers import CREDENTIALS, make_bucket, moto_server
from segstore.tiers.api import LogAddress
from segstore.tiers.journal.files import FilePreparer
from segstore.tiers.memory import MemoryChunkStorage
from segstore.tiers.s3.settings import S3Settings

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
        await recovery.run(planned)
        assert [str(each) for each in planned.findings] == before
    async with open_recovery(config_of(path, **changes)) as recovery:
        assert (await recovery.plan()).problems == []
    return planned


async def content(container: SegmentContainer, name: str) -> bytes:
    await container.activate(name)
    info = container.segment_info(name)
    data = bytearray()
    while (offset := info.start_offset + len(data)) < info.length:
        data += (await container.read(name, offset=offset, length_max=MIB)).data
    return bytes(data)


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
    assert (finding.segment.partition(".S-")[0], finding.what) == (OTHER, "lost end")
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS) + EVENTS[3]
        assert await content(container, OTHER) == b""
        await check_table(container)


@pytest.mark.parametrize("harm", ["flip", "cut", "cut, and tier 2 has a later copy of metadata"])
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

    async def release(self: identity._Ownership) -> None:
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
        patched.setattr(identity._Ownership, "release", release)
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


async def test_a_log_without_its_beginning_does_not_move_a_segments_start() -> None:
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
    storage = PlannedStorage(MemoryChunkStorage(), stored, {})
    salvage = Salvage(0, storage, stored, None, keeps_indexes=False, is_cut=True)
    snapshot, _ = await salvage.run(await replay_metadata(0, entries), entries, 0)
    assert [(each.what, each.offset, each.length) for each in salvage.findings] == [
        ("lost end", 0, 10)
    ]
    made = ContainerMetadata(0)
    made.restore(snapshot)
    assert (made.by_name[NAME].start_offset, made.by_name[NAME].length) == (0, 0)


@pytest.mark.processes
@pytest.mark.parametrize("harm", ["lost", "damaged"])
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
    assert {each.what for each in plan.findings} == {"lost end"}
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS[:20])
        await container.append(NAME, EVENTS[4])
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


async def test_of_a_store_without_a_copy_of_its_metadata_bytes_and_tables_come_back(
    tmp_path: Path,
) -> None:
    async with living(tmp_path) as container:
        await fill(container)
    shutil.rmtree(journal(tmp_path))
    for copy in (tmp_path / "data" / "storage" / "_system").rglob("*container*"):
        copy.unlink()
    plan = await recovered(tmp_path)
    assert {each.what for each in plan.findings} == {"attributes lost", "found"}
    async with living(tmp_path) as container:
        assert await content(container, NAME) == b"".join(EVENTS)
        assert await container.get_attributes(NAME, [ATTRIBUTE]) == {ATTRIBUTE: 50}
        await check_table(container)
