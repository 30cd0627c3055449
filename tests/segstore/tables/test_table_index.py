"""Tables whose keys are mostly in attributes: what is read, what is kept, what is written there."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import trio
import trio.testing

from pravega_wire.commands import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from segstore.api import HasRoom, OnRead, ReadHandle
from segstore.errors import NoSuchSegmentError, SegmentSealedError, StorageError
from segstore.model.attributes import (
    ATTRIBUTE_ID_LENGTH,
    ATTRIBUTE_SEGMENT_TYPE,
    NULL_ATTRIBUTE_VALUE,
    TABLE_BUCKET_COUNT,
    TABLE_ENTRY_COUNT,
    TABLE_INDEX_OFFSET,
    TABLE_TOTAL_ENTRY_COUNT,
    AttributeId,
    SegmentType,
    core_attribute,
)
from segstore.tables.entries import StoredEntry, TableDataError, encode_entry
from segstore.tables.layouts import HashKey, backpointer, hash_key
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import TableSegments
from segstore.tables.updates import CompactionCopy
from support.models.memory_container import MemoryContainer

SETTINGS = TableSettings(
    kept_value_bytes_max=8,
    clean_bytes_max=2000,
    index_count=20,
    unindexed_count_max=50,
    read_bytes=500,
)
BUCKET = b"\x11" * 16
STORED = len(encode_entry(b"0003", b"value 3"))


def one_bucket(key: bytes) -> bytes:
    return BUCKET


class WatchedContainer(MemoryContainer):
    """A container that counts reads, and lets attribute reads fail or wait."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0
        self.gate = trio.Event()
        self.gate.set()
        self.fails = False

    def read_nowait(
        self,
        name: str,
        *,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None = None,
    ) -> ReadHandle | None:
        self.read_bytes += length_max
        return super().read_nowait(
            name, offset=offset, length_max=length_max, on_complete=on_complete, has_room=has_room
        )

    async def get_attributes(
        self, name: str, attribute_ids: Sequence[AttributeId]
    ) -> dict[AttributeId, int]:
        await self.gate.wait()
        if self.fails:
            raise StorageError("tier 2 is away")
        return await super().get_attributes(name, attribute_ids)


class Table:
    def __init__(
        self,
        container: MemoryContainer,
        *,
        settings: TableSettings = SETTINGS,
        hash_key: HashKey = hash_key,
    ) -> None:
        self.container = container
        self.tables = TableSegments(container, settings, hash_key=hash_key)

    async def put(self, key: bytes, value: bytes, version: int = NO_VERSION) -> int:
        entry = TableEntry(TableKey(key, version), value)
        [written] = await self.tables.update("t", [entry])
        return written

    async def get(self, key: bytes) -> tuple[bytes, int]:
        [found] = await self.tables.read("t", [key])
        return found.value, found.key.version

    async def everything(self) -> dict[bytes, bytes]:
        page = await self.tables.iterate_entries("t", count_max=1 << 30)
        return {found.key.key: found.value for found in page.entries}

    async def step(self) -> None:
        await self.tables.find_table("t").follow()

    async def attributes(self, *ids: AttributeId) -> dict[AttributeId, int]:
        return await self.container.get_attributes("t", ids)


async def fill(table: Table, count: int, *, key_length: int = 0) -> dict[bytes, bytes]:
    await table.tables.create("t", key_length=key_length)
    contents = {b"%04d" % number: b"value %d" % number for number in range(count)}
    items = list(contents.items())
    for start in range(0, count, 25):
        await table.tables.update(
            "t", [TableEntry(TableKey(key), value) for key, value in items[start : start + 25]]
        )
    return contents


layouts = pytest.mark.parametrize("key_length", [0, 4], ids=["hash", "fixed"])


@layouts
async def test_opening_a_table_reads_only_what_the_attributes_do_not_have(key_length: int) -> None:
    container = WatchedContainer()
    table = Table(container)
    contents = await fill(table, 1000, key_length=key_length)
    await table.step()
    version = await table.put(b"0007", b"new")
    container.read_bytes = 0
    again = Table(container)
    assert await again.get(b"0007") == (b"new", version)
    assert container.read_bytes <= 2 * SETTINGS.read_bytes
    assert await again.everything() == contents | {b"0007": b"new"}


@layouts
async def test_memory_is_bounded_however_many_keys_there_are(key_length: int) -> None:
    table = Table(MemoryContainer())
    contents = await fill(table, 2000, key_length=key_length)
    for key, value in list(contents.items())[::7]:
        assert (await table.get(key))[0] == value
    tail = 2 * (SETTINGS.unindexed_count_max + 25)
    assert 0 < table.tables.index_bytes <= SETTINGS.clean_bytes_max + 600 * tail
    assert (await table.tables.info("t")).entry_count == 2000


@layouts
async def test_a_table_that_was_never_indexed_is_indexed_once(key_length: int) -> None:
    container = WatchedContainer()
    attributes = {ATTRIBUTE_SEGMENT_TYPE: int(SegmentType.TABLE)}
    if key_length:
        attributes = {
            ATTRIBUTE_SEGMENT_TYPE: int(SegmentType.FIXED_KEY_TABLE),
            ATTRIBUTE_ID_LENGTH: key_length,
        }
    await container.create_segment("t", attributes=attributes)
    contents: dict[bytes, bytes] = {}
    for number in range(700):
        key = b"%04d" % (number % 300)
        if number % 11:
            contents[key] = b"%d" % number
            await container.append("t", encode_entry(key, contents[key]))
        else:
            contents.pop(key, None)
            await container.append("t", encode_entry(key, None))
    tail_bytes_max = 80 * len(encode_entry(b"0000", b"000"))
    table = Table(container)
    assert await table.everything() == contents
    assert (await table.tables.info("t")).entry_count == len(contents)
    stored = await table.attributes(TABLE_INDEX_OFFSET)
    length = container.segment_info("t").length
    assert length - stored[TABLE_INDEX_OFFSET] < tail_bytes_max
    container.read_bytes = 0
    again = Table(container)
    assert (await again.tables.info("t")).entry_count == len(contents)
    assert container.read_bytes < 60 * 2048 + tail_bytes_max


async def test_a_bucket_leads_to_its_newest_entry_and_on_to_the_others() -> None:
    table = Table(MemoryContainer(), hash_key=one_bucket)
    await table.tables.create("t")
    a = await table.put(b"a", b"1")
    await table.step()
    b = await table.put(b"b", b"2")
    c = await table.put(b"c", b"3")
    await table.step()
    ids = (BUCKET, backpointer(a), backpointer(b), backpointer(c))
    assert await table.attributes(*ids) == {BUCKET: c, backpointer(c): b, backpointer(b): a}
    counts = {TABLE_ENTRY_COUNT: 3, TABLE_BUCKET_COUNT: 1, TABLE_TOTAL_ENTRY_COUNT: 3}
    assert await table.attributes(*counts) == counts
    await table.tables.remove("t", [TableKey(b"b", b)])
    newer = await table.put(b"a", b"4", a)
    await table.step()
    assert await table.attributes(*ids, backpointer(newer)) == {
        BUCKET: newer,
        backpointer(newer): c,
    }
    again = Table(table.container, hash_key=one_bucket)
    assert await again.get(b"a") == (b"4", newer)
    assert await again.get(b"b") == (b"", NOT_EXISTS)
    assert await again.get(b"c") == (b"3", c)
    assert await again.everything() == {b"a": b"4", b"c": b"3"}
    for key in (b"a", b"c"):
        await again.tables.remove("t", [TableKey(key)])
    await again.step()
    assert await again.attributes(*ids, backpointer(newer)) == {}
    assert (await again.attributes(TABLE_ENTRY_COUNT))[TABLE_ENTRY_COUNT] == 0


async def test_a_fixed_key_is_an_attribute_with_the_offset_of_its_entry() -> None:
    table = Table(MemoryContainer())
    await table.tables.create("t", key_length=2)
    await table.put(b"kk", b"old")
    offset = await table.put(b"kk", b"new")
    await table.put(b"xx", b"gone")
    await table.tables.remove("t", [TableKey(b"xx")])
    await table.step()
    assert await table.attributes(b"kk", b"xx") == {b"kk": offset}


async def test_keys_that_look_like_core_attributes_are_keys_like_all_others() -> None:
    table = Table(MemoryContainer())
    await table.tables.create("t", key_length=16)
    keys = [ATTRIBUTE_SEGMENT_TYPE, TABLE_INDEX_OFFSET, core_attribute(77), bytes(16)]
    for key in keys:
        await table.put(key, key)
    await table.step()
    again = Table(table.container)
    page = await again.tables.iterate_entries("t", count_max=10)
    assert [found.key.key for found in page.entries] == sorted(keys)
    assert (await again.tables.info("t")).key_length == 16


async def test_a_sealed_table_is_readable_though_it_cannot_be_indexed() -> None:
    table = Table(MemoryContainer())
    contents = await fill(table, 40)
    await table.container.seal_segment("t")
    again = Table(table.container, settings=msgspec.structs.replace(SETTINGS, index_count=5))
    assert await again.everything() == contents
    assert (await again.tables.info("t")).entry_count == 40
    with pytest.raises(SegmentSealedError):
        await again.put(b"new", b"")


# ---- Steps ---------------------------------------------------------------------------------------


async def test_a_step_that_was_abandoned_is_taken_note_of() -> None:
    container = MemoryContainer()
    table = Table(container)
    contents = await fill(table, 20)
    container.auto_commit = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.step)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    container.commit()
    container.auto_commit = True
    assert await table.everything() == contents
    await table.put(b"0003", b"new")
    await table.step()
    await table.step()
    length = container.segment_info("t").length
    assert (await table.attributes(TABLE_INDEX_OFFSET))[TABLE_INDEX_OFFSET] == length
    assert (await table.tables.info("t")).entry_count == 20
    assert await Table(container).everything() == contents | {b"0003": b"new"}


async def test_a_step_does_not_take_a_namesake_for_its_table() -> None:
    container = WatchedContainer()
    table = Table(container)
    await fill(table, 10)
    container.gate = trio.Event()
    outcome: list[str] = []

    async def step() -> None:
        try:
            await table.step()
        except NoSuchSegmentError:
            outcome.append("no such segment")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(step)
        await trio.testing.wait_all_tasks_blocked()
        await container.delete_segment("t")
        other = TableSegments(container, SETTINGS)
        await other.create("t")
        container.gate.set()
    assert outcome == ["no such segment"]
    assert await table.attributes(TABLE_INDEX_OFFSET, TABLE_ENTRY_COUNT) == {}
    await other.update("t", [TableEntry(TableKey(b"new"), b"v")])
    assert await Table(container).everything() == {b"new": b"v"}


async def test_somebody_elses_steps_and_updates_are_taken_note_of() -> None:
    container = MemoryContainer()
    table = Table(container)
    contents = await fill(table, 30)
    other = Table(container)
    for number in range(60):
        contents[b"%04d" % number] = b"other %d" % number
        await other.put(b"%04d" % number, contents[b"%04d" % number])
    await other.step()
    await table.step()
    contents[b"0001"] = b"mine"
    await table.put(b"0001", b"mine")
    await table.step()
    assert await table.everything() == contents
    assert (await table.tables.info("t")).entry_count == len(contents)


async def test_tables_are_indexed_in_the_background_after_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = Table(MemoryContainer())
    await table.tables.create("t")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.tables.run)
        await table.put(b"k", b"v")
        assert await table.attributes(TABLE_INDEX_OFFSET) == {}
        await trio.sleep(SETTINGS.index_seconds + 1)
        length = table.container.segment_info("t").length
        assert await table.attributes(TABLE_INDEX_OFFSET) == {TABLE_INDEX_OFFSET: length}
        nursery.cancel_scope.cancel()


async def test_a_tail_that_was_only_read_is_indexed_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    container = MemoryContainer()
    await fill(Table(container), 10)
    table = Table(container)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.tables.run)
        await table.get(b"0001")
        await trio.sleep(SETTINGS.index_seconds + 1)
        length = table.container.segment_info("t").length
        assert await table.attributes(TABLE_INDEX_OFFSET) == {TABLE_INDEX_OFFSET: length}
        nursery.cancel_scope.cancel()


async def test_the_tail_is_bounded_and_updates_keep_their_order() -> None:
    settings = msgspec.structs.replace(SETTINGS, unindexed_count_max=3, append_bytes_max=60)
    table = Table(MemoryContainer(), settings=settings)
    await table.tables.create("t")
    versions: dict[int, int] = {}

    async def put(number: int) -> None:
        versions[number] = await table.put(b"k%d" % (number % 4), b"%d" % number)

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(put, number)
            # Tasks that are started together run in any order.
            await trio.lowlevel.checkpoint()
    assert [versions[number] for number in range(40)] == sorted(versions.values())
    length = table.container.segment_info("t").length
    stored = (await table.attributes(TABLE_INDEX_OFFSET))[TABLE_INDEX_OFFSET]
    assert length - stored <= 5 * len(encode_entry(b"k0", b"39"))
    assert (await table.everything())[b"k3"] == b"39"


async def test_updates_that_were_queued_while_there_was_room_go_on_when_there_is_none() -> None:
    settings = msgspec.structs.replace(SETTINGS, unindexed_count_max=3, append_bytes_max=60)
    table = Table(MemoryContainer(), settings=settings)
    await table.tables.create("t")
    await table.tables.info("t")
    table.container.auto_commit = False
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(table.put, b"%02d" % number, b"v")
            await trio.testing.wait_all_tasks_blocked()
            table.container.auto_commit = True
            table.container.commit()
    assert len(await table.everything()) == 20


async def test_a_step_in_the_background_lets_the_queue_go_on() -> None:
    settings = msgspec.structs.replace(SETTINGS, unindexed_count_max=3, append_bytes_max=60)
    table = Table(MemoryContainer(), settings=settings)
    await table.tables.create("t")
    for number in range(3):
        await table.put(b"%02d" % number, b"v")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            for number in range(3, 6):
                nursery.start_soon(table.put, b"%02d" % number, b"v")
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            scope.cancel()
    await table.step()
    await trio.testing.wait_all_tasks_blocked()
    contents = await table.everything()
    await table.put(b"zz", b"v")
    assert await table.everything() == contents | {b"zz": b"v"}


# ---- Looks at attributes -------------------------------------------------------------------------


async def make_watched(
    container: WatchedContainer | None = None,
) -> tuple[Table, WatchedContainer]:
    """Make a table whose keys are in its attributes, and nowhere in memory."""
    container = container or WatchedContainer()
    table = Table(container)
    await fill(table, 10)
    await table.step()
    again = Table(container)
    await again.tables.info("t")
    return again, container


async def test_an_update_waits_for_its_keys_and_keeps_back_those_of_the_same_keys() -> None:
    table, container = await make_watched()
    known = (await Table(container).get(b"0003"))[1]
    container.gate = trio.Event()
    versions: dict[bytes, int] = {}

    async def put(value: bytes, version: int) -> None:
        versions[value] = await table.put(b"0003", value, version)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, b"first", known)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(put, b"second", NO_VERSION)
        await trio.testing.wait_all_tasks_blocked()
        assert versions == {}
        container.gate.set()
    assert versions[b"first"] < versions[b"second"]
    assert await table.get(b"0003") == (b"second", versions[b"second"])


async def test_a_cancelled_update_that_waits_for_its_keys_keeps_nobody_back() -> None:
    table, container = await make_watched()
    container.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.01):
            nursery.start_soon(table.put, b"0003", b"new")
            await table.put(b"0003", b"never", NOT_EXISTS)
        await trio.testing.wait_all_tasks_blocked()
        assert (await table.get(b"0003"))[0] == b"new"
    container.gate.set()


class HandyContainer(WatchedContainer):
    """A container that has everything in memory."""

    def attribute_now(self, name: str, attribute_id: AttributeId) -> int | None:
        return self._find(name).attributes.get(attribute_id, NULL_ATTRIBUTE_VALUE)

    def bytes_now(self, name: str, *, offset: int, length_max: int) -> bytes:
        return bytes(self._find(name).data[offset : offset + length_max])


async def test_what_is_in_memory_is_found_without_a_look_at_tier_2() -> None:
    """The test reads, checks conditions and removes, with keys that exist and others."""
    table, container = await make_watched(HandyContainer())
    container.fails = True
    container.read_bytes = 0
    assert (await table.get(b"0003"))[1] == 3 * STORED
    assert (await table.get(b"none"))[1] == NOT_EXISTS
    assert await table.put(b"0004", b"new", 4 * STORED) == 10 * STORED
    await table.put(b"other", b"new", NOT_EXISTS)
    await table.tables.remove("t", [TableKey(b"0005", NO_VERSION), TableKey(b"nobody")])
    assert (await table.get(b"0005"))[1] == NOT_EXISTS
    assert container.read_bytes == 0


async def test_damage_that_is_found_at_once_is_told_and_leaves_no_key_pinned() -> None:
    table, container = await make_watched(HandyContainer())
    container._find("t").data[3 * STORED] = 0xFF
    for attempt in (lambda: table.get(b"0003"), lambda: table.put(b"0003", b"", NOT_EXISTS)):
        with pytest.raises(TableDataError):
            await attempt()
    index = await table.tables.find_table("t").index()
    assert not index.known._pins
    await table.put(b"0003", b"mended")
    assert (await table.get(b"0003"))[0] == b"mended"


async def test_updates_of_other_keys_overtake_one_that_waits_for_its_key() -> None:
    table, container = await make_watched()
    container.gate = trio.Event()
    written: list[bytes] = []

    async def put(key: bytes, value: bytes, version: int = NO_VERSION) -> None:
        await table.put(key, value, version)
        written.append(value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, b"0003", b"first", 3 * STORED)
        await trio.testing.wait_all_tasks_blocked()
        await put(b"0004", b"overtakes")
        nursery.start_soon(put, b"0003", b"second")
        await trio.testing.wait_all_tasks_blocked()
        await put(b"0004", b"too")
        container.gate.set()
    assert written[:2] == [b"overtakes", b"too"]
    assert (await table.get(b"0003"))[0] == b"second"


async def test_what_depends_on_the_length_overtakes_nothing_and_is_not_overtaken() -> None:
    table, container = await make_watched()
    container.gate = trio.Event()
    length = container.segment_info("t").length
    done: list[str] = []

    async def put(name: str, key: bytes, version: int, segment_offset: int) -> None:
        update = [TableEntry(TableKey(key, version), b"new")]
        await table.tables.update("t", update, segment_offset=segment_offset)
        done.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, "waits", b"0003", 3 * STORED, -1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(put, "length", b"0004", NO_VERSION, length + STORED - 4)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(put, "behind", b"0005", NO_VERSION, -1)
        await trio.testing.wait_all_tasks_blocked()
        assert done == []
        container.gate.set()
    assert container.segment_info("t").length == length + 3 * (STORED - 4)
    assert len(done) == 3


async def test_a_copy_that_waits_for_its_keys_keeps_back_no_other_key() -> None:
    """A compaction looks up what it copies: others write meanwhile."""
    table, container = await make_watched()
    index = await table.tables.find_table("t").index()
    container.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        copy = CompactionCopy([StoredEntry(b"0003", b"value 3", 3 * STORED, 3 * STORED, STORED)])
        assert not index.knows(copy.keys)
        nursery.start_soon(table.tables.find_table("t").submit, lambda _: copy)
        await trio.testing.wait_all_tasks_blocked()
        await table.put(b"0004", b"new")
        container.gate.set()


async def test_a_failing_tier_2_refuses_only_what_needs_it() -> None:
    table, container = await make_watched()
    container.fails = True
    await table.put(b"new", b"v")
    assert (await table.get(b"new"))[0] == b"v"
    for attempt in (
        lambda: table.get(b"0003"),
        lambda: table.put(b"0003", b"", NOT_EXISTS),
        table.step,
    ):
        with pytest.raises(StorageError):
            await attempt()
    container.fails = False
    assert (await table.get(b"0003"))[0] == b"value 3"
    await table.put(b"new", b"w")
    assert (await table.tables.info("t")).entry_count == 11


async def test_what_a_reader_finds_is_not_older_than_its_question() -> None:
    """The attributes take over an update while a reader still looks at what they said before."""
    table, container = await make_watched()
    found: list[bytes] = []

    container.gate = trio.Event()

    async def read() -> None:
        found.append((await table.get(b"0003"))[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await table.put(b"0003", b"new")
        nursery.start_soon(table.step)
        await trio.testing.wait_all_tasks_blocked()
        container.gate.set()
    assert found == [b"new"]
