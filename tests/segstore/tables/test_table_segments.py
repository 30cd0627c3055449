from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
import trio
import trio.testing

from pravega_wire.commands import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from segstore.errors import (
    BadOffsetError,
    ContainerOfflineError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentExistsError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    UnsupportedRequestError,
)
from segstore.model.attributes import (
    ATTRIBUTE_ID_LENGTH,
    ROLLOVER_SIZE,
    TABLE_TOTAL_ENTRY_COUNT,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
)
from segstore.tables.entries import ENTRY_BYTES_MAX, HEADER_BYTES, KEY_BYTES_MAX, encode_entry
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import PAGE_COUNT_MAX, TableSegments
from support.models.memory_container import MemoryContainer

SETTINGS = TableSettings(kept_value_bytes_max=8, read_bytes=64)
EAGER = msgspec.structs.replace(SETTINGS, compaction_bytes_min=200, compaction_step_bytes=100)


def entry(key: bytes, value: bytes, version: int = NO_VERSION) -> TableEntry:
    return TableEntry(TableKey(key, version), value)


class Table:
    """One table under test, with the container below it."""

    def __init__(
        self,
        *,
        key_length: int = 0,
        settings: TableSettings = SETTINGS,
        container: MemoryContainer | None = None,
    ) -> None:
        self.key_length = key_length
        self.container = container or MemoryContainer()
        self.tables = TableSegments(self.container, settings)

    async def create(self) -> Table:
        await self.tables.create("t", key_length=self.key_length)
        return self

    @property
    def length(self) -> int:
        return self.container.segment_info("t").length

    async def put(self, key: bytes, value: bytes, version: int = NO_VERSION) -> int:
        [written] = await self.tables.update("t", [entry(key, value, version)])
        return written

    async def remove(self, key: bytes, version: int = NO_VERSION) -> None:
        await self.tables.remove("t", [TableKey(key, version)])

    async def get(self, key: bytes) -> tuple[bytes, int]:
        [found] = await self.tables.read("t", [key])
        assert found.key.key == key
        return found.value, found.key.version

    async def everything(self) -> dict[bytes, bytes]:
        page = await self.tables.iterate_entries("t", count_max=1 << 30)
        return {found.key.key: found.value for found in page.entries}

    def forget_index(self) -> None:
        if (table := self.tables._tables.get("t")) is not None:
            self.tables._drop(table)


@pytest.fixture(params=[0, 2], ids=["hash", "fixed"])
async def table(request: pytest.FixtureRequest) -> Table:
    return await Table(key_length=request.param).create()


@pytest.fixture
async def hash_table() -> Table:
    return await Table().create()


@pytest.fixture
async def fixed_table() -> Table:
    return await Table(key_length=2).create()


# ---- Life ----------------------------------------------------------------------------------------


async def test_a_table_is_a_segment_of_its_kind() -> None:
    container = MemoryContainer()
    tables = TableSegments(container, SETTINGS)
    await tables.create("hash", rollover_bytes=77)
    await tables.create("fixed", key_length=256, rollover_bytes=-1)
    assert container.segment_info("hash").segment_type == SegmentType.TABLE
    assert container.segment_info("fixed").segment_type == SegmentType.FIXED_KEY_TABLE
    ids = [ATTRIBUTE_ID_LENGTH, ROLLOVER_SIZE]
    assert await container.get_attributes("hash", ids) == {ROLLOVER_SIZE: 77}
    assert await container.get_attributes("fixed", ids) == {
        ATTRIBUTE_ID_LENGTH: 256,
        ROLLOVER_SIZE: 0,
    }
    with pytest.raises(SegmentExistsError):
        await tables.create("hash")


@pytest.mark.parametrize("key_length", [-1, 257])
async def test_key_lengths_are_bounded(key_length: int) -> None:
    with pytest.raises(InvalidRequestError):
        await TableSegments(MemoryContainer(), SETTINGS).create("t", key_length=key_length)


async def test_a_missing_table_and_a_plain_segment_are_refused() -> None:
    container = MemoryContainer()
    tables = TableSegments(container, SETTINGS)
    await container.create_segment("stream")
    for name, error in (("missing", NoSuchSegmentError), ("stream", InvalidRequestError)):
        for attempt in (
            lambda name=name: tables.update(name, [entry(b"k", b"v")]),
            lambda name=name: tables.remove(name, [TableKey(b"k")]),
            lambda name=name: tables.read(name, [b"k"]),
            lambda name=name: tables.iterate_keys(name, count_max=1),
            lambda name=name: tables.read_delta(name, from_position=0, count_max=1),
            lambda name=name: tables.info(name),
            lambda name=name: tables.delete(name),
        ):
            with pytest.raises(error):
                await attempt()
    assert container.segment_info("stream").length == 0


async def test_a_deleted_table_can_be_created_again_empty(table: Table) -> None:
    await table.put(b"k1", b"v")
    await table.tables.delete("t")
    with pytest.raises(NoSuchSegmentError):
        await table.get(b"k1")
    await table.create()
    assert await table.get(b"k1") == (b"", NOT_EXISTS)
    assert await table.put(b"k1", b"new") == 0


async def test_only_an_empty_table_is_deleted_when_it_must_be_empty(hash_table: Table) -> None:
    await hash_table.put(b"k", b"v")
    with pytest.raises(TableNotEmptyError):
        await hash_table.tables.delete("t", must_be_empty=True)
    await hash_table.remove(b"k")
    await hash_table.tables.delete("t", must_be_empty=True)
    with pytest.raises(NoSuchSegmentError):
        await hash_table.get(b"k")


async def test_a_fixed_key_table_is_not_deleted_only_if_empty(fixed_table: Table) -> None:
    with pytest.raises(UnsupportedRequestError):
        await fixed_table.tables.delete("t", must_be_empty=True)
    await fixed_table.tables.delete("t")


async def test_info_counts_entries(table: Table) -> None:
    await table.put(b"k1", b"v")
    await table.put(b"k2", b"v")
    await table.put(b"k1", b"w")
    await table.remove(b"k2")
    info = await table.tables.info("t")
    assert (info.entry_count, info.key_length) == (1, table.key_length)
    assert (info.start_offset, info.length) == (0, table.length)


# ---- Updates -------------------------------------------------------------------------------------


async def test_the_version_of_an_entry_is_its_offset(table: Table) -> None:
    versions = await table.tables.update("t", [entry(b"k1", b"one"), entry(b"k2", b"two")])
    assert versions == [0, HEADER_BYTES + 5]
    assert await table.put(b"k3", b"") == 2 * (HEADER_BYTES + 5)
    assert await table.get(b"k2") == (b"two", versions[1])


async def test_an_update_is_exactly_its_entries_in_the_segment(table: Table) -> None:
    await table.tables.update("t", [entry(b"k1", b"one"), entry(b"k2", b"two")])
    await table.remove(b"k1")
    result = await table.container.read("t", offset=0, length_max=1000)
    assert result.data == (
        encode_entry(b"k1", b"one") + encode_entry(b"k2", b"two") + encode_entry(b"k1", None)
    )


async def test_an_empty_value_is_a_value(table: Table) -> None:
    version = await table.put(b"k1", b"")
    assert await table.get(b"k1") == (b"", version)
    table.forget_index()
    assert await table.get(b"k1") == (b"", version)


async def test_an_insert_needs_an_absent_key(table: Table) -> None:
    await table.put(b"k1", b"v", NOT_EXISTS)
    with pytest.raises(TableKeyVersionError):
        await table.put(b"k1", b"w", NOT_EXISTS)
    await table.remove(b"k1")
    await table.put(b"k1", b"x", NOT_EXISTS)
    assert (await table.get(b"k1"))[0] == b"x"


async def test_a_replacement_needs_the_exact_version(table: Table) -> None:
    first = await table.put(b"k1", b"v")
    second = await table.put(b"k1", b"w", first)
    for wrong in (first, second + 1, 0x7FFF_FFFF_FFFF_FFFF, -2):
        with pytest.raises(TableKeyVersionError):
            await table.put(b"k1", b"x", wrong)
    assert await table.get(b"k1") == (b"w", second)


async def test_a_version_of_an_absent_key_is_another_error_than_a_wrong_version(
    table: Table,
) -> None:
    with pytest.raises(TableKeyMissingError):
        await table.put(b"k1", b"v", 0)
    with pytest.raises(TableKeyMissingError):
        await table.remove(b"k1", 0)


async def test_a_missing_key_is_reported_before_a_wrong_version(table: Table) -> None:
    await table.put(b"k1", b"v")
    with pytest.raises(TableKeyMissingError):
        await table.tables.update("t", [entry(b"k1", b"", 99), entry(b"k2", b"", 99)])


async def test_one_failed_condition_rejects_the_whole_batch(table: Table) -> None:
    await table.put(b"k1", b"old")
    length = table.length
    with pytest.raises(TableKeyVersionError):
        await table.tables.update(
            "t", [entry(b"k2", b"new"), entry(b"k1", b"new", NOT_EXISTS), entry(b"k3", b"new")]
        )
    with pytest.raises(TableKeyVersionError):
        await table.tables.remove("t", [TableKey(b"k1"), TableKey(b"k1", NOT_EXISTS)])
    assert await table.everything() == {b"k1": b"old"}
    assert table.length == length


async def test_conditions_of_a_batch_hold_against_the_table_before_it(table: Table) -> None:
    await table.tables.update("t", [entry(b"k1", b"a", NOT_EXISTS), entry(b"k1", b"b", NOT_EXISTS)])
    assert (await table.get(b"k1"))[0] == b"b"


async def test_removing_with_not_exists_tests_absence_and_changes_nothing(table: Table) -> None:
    await table.put(b"k1", b"v")
    length = table.length
    await table.remove(b"k2", NOT_EXISTS)
    with pytest.raises(TableKeyVersionError):
        await table.remove(b"k1", NOT_EXISTS)
    assert table.length == length
    assert (await table.get(b"k1"))[0] == b"v"


async def test_removing_an_absent_key_without_condition_succeeds(table: Table) -> None:
    await table.remove(b"k1")
    assert table.length == 0


async def test_the_segment_offset_is_a_condition_on_the_length(table: Table) -> None:
    await table.put(b"k1", b"v")
    length = table.length
    for wrong in (0, length + 1):
        with pytest.raises(BadOffsetError) as caught:
            await table.tables.update("t", [entry(b"k1", b"w")], segment_offset=wrong)
        assert (caught.value.expected, caught.value.actual) == (wrong, length)
        with pytest.raises(BadOffsetError):
            await table.tables.remove("t", [TableKey(b"k1")], segment_offset=wrong)
    await table.tables.update("t", [entry(b"k1", b"w")], segment_offset=length)
    await table.tables.remove("t", [TableKey(b"k1")], segment_offset=table.length)


async def test_conditions_on_keys_are_reported_before_the_segment_offset(table: Table) -> None:
    with pytest.raises(TableKeyMissingError):
        await table.tables.update("t", [entry(b"k1", b"w", 5)], segment_offset=9)


async def test_sizes_are_bounded() -> None:
    settings = TableSettings(batch_bytes_max=3_000_000)
    table = await Table(settings=settings).create()
    key, value = b"k" * 8192, b"v" * (1024 * 1024 - 8192)
    await table.put(key, value)
    assert (await table.get(key))[0] == value
    length = table.length
    for bad_key, bad_value in ((b"", b""), (key + b"k", b""), (b"k", value + b"v")):
        with pytest.raises(InvalidRequestError):
            await table.put(bad_key, bad_value)
    with pytest.raises(InvalidRequestError):
        await table.remove(b"")
    with pytest.raises(InvalidRequestError):
        await table.tables.update("t", [entry(b"%d" % number, value) for number in range(3)])
    assert table.length == length


async def test_the_default_bounds_are_the_protocols() -> None:
    settings = TableSettings()
    assert settings.key_bytes_max == 8192
    assert settings.value_bytes_max == 1024 * 1024 - 8192
    assert settings.batch_bytes_max == 32 * 1024 * 1024


def test_bounds_that_the_format_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="key_bytes_max"):
        TableSettings(key_bytes_max=KEY_BYTES_MAX + 1)
    with pytest.raises(ValueError, match="value_bytes_max"):
        TableSettings(value_bytes_max=ENTRY_BYTES_MAX + 1)
    largest = TableSettings(key_bytes_max=KEY_BYTES_MAX, value_bytes_max=ENTRY_BYTES_MAX)
    assert largest.key_bytes_max == KEY_BYTES_MAX


async def test_a_longest_entry_is_read_again_after_a_restart() -> None:
    settings = TableSettings(value_bytes_max=ENTRY_BYTES_MAX)
    container = MemoryContainer()
    tables = TableSegments(container, settings)
    await tables.create("t")
    key, value = bytes(settings.key_bytes_max), bytes(settings.value_bytes_max)
    await tables.update("t", [TableEntry(TableKey(key), value)])
    [found] = await TableSegments(container, settings).read("t", [key])
    assert found.value == value


async def test_fixed_key_tables_take_keys_of_one_length(fixed_table: Table) -> None:
    for key in (b"k", b"key"):
        with pytest.raises(InvalidRequestError):
            await fixed_table.put(key, b"v")
        with pytest.raises(InvalidRequestError):
            await fixed_table.remove(key)
        with pytest.raises(InvalidRequestError):
            await fixed_table.get(key)


# ---- Durability and batching ---------------------------------------------------------------------


async def make_manual(*, key_length: int = 0) -> Table:
    """Make a table whose container commits only when told; its index is built."""
    container = MemoryContainer()
    table = await Table(key_length=key_length, container=container).create()
    await table.put(b"k0", b"0")
    container.auto_commit = False
    return table


async def test_readers_see_nothing_before_it_is_durable() -> None:
    table = await make_manual()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.put, b"k0", b"new")
        nursery.start_soon(table.put, b"k1", b"new")
        await trio.testing.wait_all_tasks_blocked()
        assert await table.everything() == {b"k0": b"0"}
        assert (await table.get(b"k1"))[1] == NOT_EXISTS
        assert (await table.tables.info("t")).entry_count == 1
        table.container.commit()
        await trio.testing.wait_all_tasks_blocked()
        table.container.commit()
    assert await table.everything() == {b"k0": b"new", b"k1": b"new"}


async def test_updates_that_wait_share_one_append() -> None:
    table = await make_manual()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.put, b"first", b"")
        await trio.testing.wait_all_tasks_blocked()
        for number in range(50):
            nursery.start_soon(table.put, b"%d" % number, b"")
        await trio.testing.wait_all_tasks_blocked()
        assert table.container.queued_count == 1
        table.container.commit()
        await trio.testing.wait_all_tasks_blocked()
        assert table.container.queued_count == 1
        table.container.commit()
    assert (await table.tables.info("t")).entry_count == 52


async def test_a_long_queue_is_cut_into_bounded_appends() -> None:
    settings = msgspec.structs.replace(SETTINGS, append_bytes_max=1000)
    table = await Table(settings=settings, container=MemoryContainer()).create()
    await table.put(b"k", b"")
    table.container.auto_commit = False
    start = table.length
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(table.put, b"%d" % number, b"x" * 400)
        lengths = []
        while table.length < start + 10 * (HEADER_BYTES + 401):
            await trio.testing.wait_all_tasks_blocked()
            before = table.length
            table.container.commit()
            lengths.append(table.length - before)
    assert max(lengths) <= 1000
    assert sum(lengths) == 10 * (HEADER_BYTES + 401)


async def test_an_update_is_judged_by_those_before_it_in_the_queue() -> None:
    table = await make_manual()
    errors: list[str] = []

    async def insert(value: bytes) -> None:
        try:
            await table.put(b"new", value, NOT_EXISTS)
        except TableKeyVersionError:
            errors.append("refused")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(insert, b"a")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(insert, b"b")
        await trio.testing.wait_all_tasks_blocked()
        assert errors == []
        table.container.commit()
    assert errors == ["refused"]
    assert (await table.get(b"new"))[0] == b"a"


async def test_a_refusal_that_rests_on_a_queued_update_waits_for_it() -> None:
    table = await make_manual()
    outcomes: list[str] = []

    async def attempt(key: bytes, version: int) -> None:
        try:
            await table.put(key, b"", version)
            outcomes.append("written")
        except TableKeyVersionError:
            outcomes.append("refused")
        except ContainerOfflineError:
            outcomes.append("offline")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attempt, b"blocker", NO_VERSION)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(attempt, b"new", NOT_EXISTS)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(attempt, b"new", NOT_EXISTS)
        await trio.testing.wait_all_tasks_blocked()
        table.container.commit()
        await trio.testing.wait_all_tasks_blocked()
        assert outcomes == ["written"]
        table.container.crash()
    assert outcomes == ["written", "offline", "offline"]


async def test_a_cancelled_update_still_happens() -> None:
    table = await make_manual()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(table.put, b"k1", b"kept")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    table.container.commit()
    assert (await table.get(b"k1"))[0] == b"kept"


async def test_a_foreign_append_makes_the_index_new() -> None:
    container = MemoryContainer()
    table = await Table(container=container).create()
    await table.put(b"k0", b"0")
    await container.append("t", encode_entry(b"foreign", b"entry"))
    version = await table.put(b"k1", b"1")
    assert version == 2 * HEADER_BYTES + 3 + 12
    assert await table.everything() == {b"k0": b"0", b"foreign": b"entry", b"k1": b"1"}


async def test_an_offline_container_fails_all_that_waits() -> None:
    table = await make_manual()
    failures = 0

    async def fail(key: bytes) -> None:
        nonlocal failures
        with pytest.raises(ContainerOfflineError):
            await table.put(key, b"")
        failures += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail, b"in flight")
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            nursery.start_soon(fail, b"%d" % number)
        await trio.testing.wait_all_tasks_blocked()
        table.container.crash()
    assert failures == 4


@pytest.mark.parametrize("durable_count", [0, 1])
async def test_after_a_crash_the_table_is_what_the_segment_says(durable_count: int) -> None:
    table = await make_manual()
    async with trio.open_nursery() as nursery:

        async def put() -> None:
            with pytest.raises(ContainerOfflineError):
                await table.put(b"k1", b"1")

        nursery.start_soon(put)
        await trio.testing.wait_all_tasks_blocked()
        table.container.crash(durable_count=durable_count)
    container = table.container.reopen()
    container.auto_commit = True
    again = Table(container=container)
    assert await again.everything() == {b"k0": b"0"} | ({b"k1": b"1"} if durable_count else {})
    await again.put(b"k2", b"2")


async def test_deleting_if_empty_sees_updates_that_were_queued_before() -> None:
    table = await make_manual()
    await_commit = trio.testing.wait_all_tasks_blocked
    outcomes: list[str] = []

    async def delete() -> None:
        try:
            await table.tables.delete("t", must_be_empty=True)
            outcomes.append("deleted")
        except TableNotEmptyError:
            outcomes.append("not empty")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.remove, b"k0")
        await await_commit()
        nursery.start_soon(table.put, b"k1", b"")
        await await_commit()
        nursery.start_soon(delete)
        for _ in range(3):
            await await_commit()
            table.container.commit()
    assert outcomes == ["not empty"]


async def test_an_update_behind_a_deletion_is_refused_not_lost() -> None:
    table = await make_manual()
    outcomes: list[str] = []

    async def put() -> None:
        try:
            await table.put(b"k1", b"")
        except NoSuchSegmentError:
            outcomes.append("no such segment")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.remove, b"k0")
        await trio.testing.wait_all_tasks_blocked()
        table.container.commit()
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lambda: table.tables.delete("t", must_be_empty=True))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(put)
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            table.container.commit()
    assert outcomes == ["no such segment"]


async def test_a_cancelled_deletion_lets_the_queue_go_on() -> None:
    table = await make_manual()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.put, b"k1", b"")
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01):
            await table.tables.delete("t", must_be_empty=True)
        nursery.start_soon(table.put, b"k2", b"")
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            table.container.commit()
    assert (await table.tables.info("t")).entry_count == 3


# ---- The index -----------------------------------------------------------------------------------


async def test_the_index_is_built_from_the_segment(table: Table) -> None:
    for number in range(40):
        await table.put(b"%02d" % (number % 10), b"value %d" % number)
    await table.remove(b"03")
    before = await table.everything()
    table.forget_index()
    assert await table.everything() == before
    assert len(before) == 9
    assert before[b"09"] == b"value 39"


async def test_many_callers_build_the_index_once() -> None:
    reads = 0

    class CountingContainer(MemoryContainer):
        async def read(self, name: str, *, offset: int, length_max: int) -> object:  # type: ignore[override]
            nonlocal reads
            reads += 1
            return await super().read(name, offset=offset, length_max=length_max)

    table = await Table(container=CountingContainer()).create()
    await table.put(b"k", b"v")
    table.forget_index()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(table.get, b"k")
    assert reads == 1


async def test_indexes_of_tables_not_in_use_are_dropped_above_the_bound() -> None:
    settings = msgspec.structs.replace(SETTINGS, index_bytes_max=4000)
    container = MemoryContainer()
    tables = TableSegments(container, settings)
    for number in range(10):
        name = f"t{number}"
        await tables.create(name)
        await tables.update(name, [entry(b"%d" % key, b"v") for key in range(5)])
        assert 0 < tables.index_bytes <= 4000 + 5 * 400
    for number in range(10):
        info = await tables.info(f"t{number}")
        assert info.entry_count == 5
    assert tables.index_bytes <= 4000
    for number in range(10):
        await tables.delete(f"t{number}")
    assert tables.index_bytes == 0


# ---- Reads and iterations ------------------------------------------------------------------------


async def test_reading_answers_every_key_in_order(table: Table) -> None:
    version = await table.put(b"k1", b"value")
    found = await table.tables.read("t", [b"k2", b"k1", b"k2", b"k1"])
    absent, present = entry(b"k2", b"", NOT_EXISTS), entry(b"k1", b"value", version)
    assert found == [absent, present, absent, present]


async def test_large_values_are_read_from_the_segment(table: Table) -> None:
    value = bytes(range(256)) * 20
    version = await table.put(b"k1", value)
    assert await table.get(b"k1") == (value, version)


async def test_an_answer_is_bounded() -> None:
    settings = msgspec.structs.replace(SETTINGS, reply_bytes_max=1000)
    table = await Table(settings=settings).create()
    await table.put(b"k", b"v" * 600)
    await table.tables.read("t", [b"k"])
    with pytest.raises(InvalidRequestError):
        await table.tables.read("t", [b"k", b"k"])
    # Keys that there are not come back too, and so does what each of many small ones takes.
    for keys in ([b"none" * 100] * 3, [b""] * 50):
        with pytest.raises(InvalidRequestError):
            await table.tables.read("t", keys)


async def collect_keys(table: Table, *, count_max: int) -> list[bytes]:
    keys: list[bytes] = []
    token = b""
    while True:
        page = await table.tables.iterate_keys("t", count_max=count_max, continuation_token=token)
        if not page.keys:
            return keys
        keys += [key.key for key in page.keys]
        token = page.continuation_token


async def collect_entries(table: Table, *, count_max: int) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    token = b""
    while True:
        page = await table.tables.iterate_entries(
            "t", count_max=count_max, continuation_token=token
        )
        if not page.entries:
            return found
        assert len(page.entries) == count_max or len(found) + len(page.entries) == 25
        found |= {item.key.key: item.value for item in page.entries}
        token = page.continuation_token


async def test_hash_iterations_page_by_token_and_end_with_an_empty_page(hash_table: Table) -> None:
    model = {b"key %d" % number: b"value of %d" % number for number in range(25)}
    await hash_table.tables.update("t", [entry(key, value) for key, value in model.items()])
    for count_max in (1, 4, 25, 1000):
        assert sorted(await collect_keys(hash_table, count_max=count_max)) == sorted(model)
        assert await collect_entries(hash_table, count_max=count_max) == model


async def test_iterated_keys_carry_their_versions(table: Table) -> None:
    version = await table.put(b"k1", b"v")
    page = await table.tables.iterate_keys("t", count_max=10)
    assert page.keys == (TableKey(b"k1", version),)


async def test_a_hash_iteration_goes_on_when_the_table_changes(hash_table: Table) -> None:
    for number in range(10):
        await hash_table.put(b"%d" % number, b"v")
    page = await hash_table.tables.iterate_keys("t", count_max=5)
    seen = {key.key for key in page.keys}
    await hash_table.remove(next(iter(seen)))
    rest = await hash_table.tables.iterate_keys(
        "t", count_max=50, continuation_token=page.continuation_token
    )
    assert seen | {key.key for key in rest.keys} == {b"%d" % number for number in range(10)}
    assert not seen & {key.key for key in rest.keys}


async def test_hash_tables_refuse_ranges_and_strange_tokens(hash_table: Table) -> None:
    tables = hash_table.tables
    with pytest.raises(InvalidRequestError):
        await tables.iterate_keys("t", count_max=1, from_key=b"a")
    with pytest.raises(InvalidRequestError):
        await tables.iterate_entries("t", count_max=1, to_key=b"a")
    with pytest.raises(InvalidRequestError):
        await tables.iterate_keys("t", count_max=1, continuation_token=b"strange")


async def test_fixed_iterations_are_sorted_with_both_bounds_included(fixed_table: Table) -> None:
    keys = [bytes((high, low)) for high in (0, 0x7F, 0x80, 0xFF) for low in (0, 0xFF)]
    await fixed_table.tables.update("t", [entry(key, key) for key in reversed(keys)])
    tables = fixed_table.tables

    async def page(count_max: int, from_key: bytes, to_key: bytes) -> list[bytes]:
        found = await tables.iterate_entries(
            "t", count_max=count_max, from_key=from_key, to_key=to_key
        )
        assert found.continuation_token == b""
        return [item.key.key for item in found.entries]

    assert await page(100, b"", b"") == keys
    assert await page(100, keys[1], keys[5]) == keys[1:6]
    assert await page(2, keys[1], keys[5]) == keys[1:3]
    assert await page(100, keys[2][:1] + b"\1", keys[3][:1] + b"\xfe") == []
    assert await page(100, keys[7], b"") == keys[7:]


async def test_fixed_key_tables_refuse_tokens(fixed_table: Table) -> None:
    with pytest.raises(InvalidRequestError):
        await fixed_table.tables.iterate_keys("t", count_max=1, continuation_token=bytes(16))


async def test_pages_are_bounded_in_bytes() -> None:
    settings = msgspec.structs.replace(SETTINGS, page_bytes_max=1000)
    table = await Table(settings=settings).create()
    for number in range(10):
        await table.put(b"%d" % number, b"v" * 300)
    page = await table.tables.iterate_entries("t", count_max=100)
    assert len(page.entries) == 4
    delta = await table.tables.read_delta("t", from_position=0, count_max=100)
    assert len(delta.entries) == 4


async def test_pages_are_bounded_in_keys_whatever_is_asked_for() -> None:
    table = await Table(settings=TableSettings()).create()
    keys = [b"%d" % number for number in range(PAGE_COUNT_MAX + 100)]
    await table.tables.update("t", [entry(key, b"") for key in keys])
    page = await table.tables.iterate_keys("t", count_max=1 << 30)
    assert len(page.keys) == PAGE_COUNT_MAX
    rest = await table.tables.iterate_keys(
        "t", count_max=1 << 30, continuation_token=page.continuation_token
    )
    assert {key.key for key in (*page.keys, *rest.keys)} == set(keys)


async def test_an_update_of_nothing_is_nothing(table: Table) -> None:
    await table.put(b"k1", b"v")
    length = table.length
    assert await table.tables.update("t", []) == []
    await table.tables.remove("t", [], segment_offset=length)
    with pytest.raises(BadOffsetError):
        await table.tables.update("t", [], segment_offset=length + 1)
    assert await table.tables.read("t", []) == []
    assert table.length == length


# ---- Deltas --------------------------------------------------------------------------------------


def delta_of(entries: Sequence[TableEntry]) -> dict[bytes, bytes]:
    return {item.key.key: item.value for item in entries}


async def test_a_delta_has_what_was_written_behind_the_position(hash_table: Table) -> None:
    first = await hash_table.put(b"a", b"1")
    await hash_table.put(b"b", b"2")
    whole = await hash_table.tables.read_delta("t", from_position=0, count_max=10)
    assert whole.entries[0] == entry(b"a", b"1", first)
    assert (whole.should_clear, whole.reached_end) == (False, True)
    assert whole.last_position == hash_table.length
    await hash_table.put(b"a", b"3")
    news = await hash_table.tables.read_delta("t", from_position=whole.last_position, count_max=10)
    assert delta_of(news.entries) == {b"a": b"3"}


async def test_a_delta_at_the_end_is_empty_and_stays_there(hash_table: Table) -> None:
    await hash_table.put(b"a", b"1")
    end = hash_table.length
    page = await hash_table.tables.read_delta("t", from_position=end, count_max=10)
    assert (page.entries, page.should_clear, page.reached_end) == ((), False, True)
    assert page.last_position == end


async def test_a_key_appears_once_in_a_delta_and_not_when_it_is_removed(hash_table: Table) -> None:
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2")):
        await hash_table.put(key, value)
    await hash_table.remove(b"b")
    page = await hash_table.tables.read_delta("t", from_position=0, count_max=10)
    assert delta_of(page.entries) == {b"a": b"2"}
    assert page.reached_end


async def test_deltas_page_without_gaps(hash_table: Table) -> None:
    for number in range(10):
        await hash_table.put(b"%d" % number, b"v")
    seen: list[bytes] = []
    position, pages, ended = 0, 0, False
    while True:
        page = await hash_table.tables.read_delta("t", from_position=position, count_max=3)
        if not page.entries:
            break
        assert not ended
        seen += [item.key.key for item in page.entries]
        position, pages, ended = page.last_position, pages + 1, page.reached_end
    assert seen == [b"%d" % number for number in range(10)]
    assert pages == 4


async def test_positions_outside_the_table_are_refused(hash_table: Table) -> None:
    for position in (-1, 1):
        with pytest.raises(InvalidRequestError):
            await hash_table.tables.read_delta("t", from_position=position, count_max=1)


async def test_fixed_key_tables_have_no_delta(fixed_table: Table) -> None:
    with pytest.raises(UnsupportedRequestError):
        await fixed_table.tables.read_delta("t", from_position=0, count_max=1)


# ---- Compaction ----------------------------------------------------------------------------------


async def make_eager(*, key_length: int = 0) -> Table:
    return await Table(key_length=key_length, settings=EAGER).create()


@pytest.mark.parametrize("key_length", [0, 2])
async def test_compaction_keeps_entries_and_versions_and_frees_the_head(key_length: int) -> None:
    table = await make_eager(key_length=key_length)
    kept = await table.put(b"kk", b"a value that is kept")
    for number in range(50):
        await table.put(b"xx", b"%d" % number)
    newest = await table.put(b"xx", b"last")
    await table.tables.compact("t")
    info = await table.tables.info("t")
    assert info.start_offset > 0
    assert info.length - info.start_offset < 400
    for _ in range(2):
        assert await table.get(b"kk") == (b"a value that is kept", kept)
        assert await table.get(b"xx") == (b"last", newest)
        table.forget_index()
    await table.put(b"kk", b"conditional", kept)


async def test_compaction_drops_removed_keys(hash_table: Table) -> None:
    table = await make_eager()
    for number in range(30):
        await table.put(b"%d" % number, b"value")
        await table.remove(b"%d" % number)
    await table.put(b"k", b"v")
    await table.tables.compact("t")
    table.forget_index()
    assert await table.everything() == {b"k": b"v"}
    assert (await table.tables.info("t")).start_offset > 0


async def test_a_small_or_well_used_table_is_not_compacted() -> None:
    small = await make_eager()
    for _ in range(5):
        await small.put(b"k", b"v")
    used = await make_eager()
    for number in range(50):
        await used.put(b"%d" % number, b"v")
    for table in (small, used):
        length = table.length
        await table.tables.compact("t")
        assert table.length == length


async def test_tables_are_compacted_in_the_background(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = await make_eager()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.tables.run)
        for number in range(100):
            await table.put(b"k", b"%d" % number)
        # What came while a compaction was under way is indexed, and judged, after that time.
        await trio.sleep(2 * EAGER.index_seconds)
        nursery.cancel_scope.cancel()
    info = table.container.segment_info("t")
    assert info.start_offset > 0
    assert info.length - info.start_offset < 400


class BusyContainer(MemoryContainer):
    """A container that lets something happen whenever a segment is truncated, a limited number
    of times."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], Awaitable[object]]] = []

    async def truncate_segment(self, name: str, *, offset: int) -> None:
        await super().truncate_segment(name, offset=offset)
        if self.meanwhile:
            await self.meanwhile.pop()()


async def test_what_is_written_during_a_compaction_is_compacted_though_no_tail_is_left(
    mock_clock: trio.testing.MockClock,
) -> None:
    """The compaction's own steps take it over before it asks for one, and time stands still."""
    container = BusyContainer()
    table = await Table(settings=EAGER, container=container).create()
    for number in range(40):
        await table.put(b"k", b"%d" % number)

    async def overwrite() -> None:
        for number in range(7):
            await table.put(b"k", b"%d" % number)

    container.meanwhile = [overwrite] * 20
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.tables.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    info = container.segment_info("t")
    assert not container.meanwhile
    assert info.length - info.start_offset < 2 * EAGER.compaction_bytes_min


async def test_a_table_that_is_opened_is_compacted_without_an_update(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = await make_eager()
    for number in range(40):
        await table.put(b"k", b"%d" % number)
    await table.tables.find_table("t").follow()
    table.forget_index()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.tables.run)
        assert (await table.get(b"k"))[0] == b"39"
        await trio.sleep(2 * EAGER.index_seconds)
        nursery.cancel_scope.cancel()
    info = table.container.segment_info("t")
    assert info.length - info.start_offset < EAGER.compaction_bytes_min


async def test_an_index_that_was_dropped_after_a_compaction_is_not_kept_in_memory() -> None:
    table = await make_eager()
    for number in range(40):
        await table.put(b"%d" % number, b"v")
    segment = table.tables.find_table("t")
    # So it looks at all of the table, and remembers that this was in vain.
    lie = AttributeUpdate(TABLE_TOTAL_ENTRY_COUNT, AttributeUpdateType.REPLACE, 1000)
    await segment.follow()
    await table.container.update_attributes("t", [lie])
    segment.drop_index()
    await segment.index()
    await segment.compact()
    assert segment._compacted_in_vain is not None
    index = weakref.ref(await segment.index())
    segment.drop_index()
    gc.collect()
    assert index() is None


async def test_a_table_whose_counters_lie_is_not_compacted_again_and_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = await make_eager()
    keys = [b"%d" % number for number in range(40)]
    for key in keys:
        await table.put(key, key)
    await table.tables.find_table("t").follow()
    lie = AttributeUpdate(TABLE_TOTAL_ENTRY_COUNT, AttributeUpdateType.REPLACE, 1000)
    await table.container.update_attributes("t", [lie])
    table.forget_index()
    lengths = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.tables.run)
        for _ in range(5):
            assert (await table.get(b"7"))[0] == b"7"
            await trio.sleep(2 * EAGER.index_seconds)
            lengths.append(table.length)
        nursery.cancel_scope.cancel()
    assert len(set(lengths)) == 1
    assert await table.everything() == {key: key for key in keys}


async def test_the_compactor_survives_the_deletion_of_a_table() -> None:
    table = await make_eager()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.tables.run)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(20):
            await table.put(b"k", b"%d" % number)
        await table.container.delete_segment("t")
        await table.tables.create("u")
        for number in range(100):
            await table.tables.update("u", [entry(b"k", b"%d" % number)])
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert table.container.segment_info("u").start_offset > 0


async def test_a_delta_from_before_the_compaction_tells_to_clear() -> None:
    table = await make_eager()
    await table.put(b"kept", b"v")
    middle = table.length
    for number in range(50):
        await table.put(b"x", b"%d" % number)
    await table.tables.compact("t")
    for position in (0, middle):
        page = await table.tables.read_delta("t", from_position=position, count_max=100)
        assert page.should_clear
        assert delta_of(page.entries) == {b"kept": b"v", b"x": b"49"}
    start = table.container.segment_info("t").start_offset
    page = await table.tables.read_delta("t", from_position=start, count_max=100)
    assert not page.should_clear


async def test_an_update_in_flight_wins_over_the_copy_of_what_it_replaces() -> None:
    table = await make_eager()
    await table.put(b"kk", b"old")
    for number in range(30):
        await table.put(b"x", b"%d" % number)
    table.container.auto_commit = False
    newest = table.length
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.put, b"kk", b"newest")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(table.tables.compact, "t")
        for _ in range(10):
            await trio.testing.wait_all_tasks_blocked()
            table.container.commit()
    table.container.auto_commit = True
    assert table.container.segment_info("t").start_offset > 0
    for _ in range(2):
        assert await table.get(b"kk") == (b"newest", newest)
        table.forget_index()


async def test_values_are_readable_while_a_compaction_moves_them() -> None:
    table = await make_eager()
    values = {b"%d" % number: b"a large value %d" % number * 3 for number in range(10)}
    for number in range(100):
        key = b"%d" % (number % 10)
        await table.put(key, values[key])

    async def read_again_and_again() -> None:
        for _ in range(20):
            for key, value in values.items():
                assert (await table.get(key))[0] == value
            assert await table.everything() == values

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_again_and_again)
        nursery.start_soon(table.tables.compact, "t")
    assert (await table.tables.info("t")).start_offset > 0


@pytest.mark.parametrize("durable_count", range(4))
async def test_a_crash_anywhere_in_a_compaction_loses_nothing(durable_count: int) -> None:
    table = await make_eager()
    versions = {b"kept": await table.put(b"kept", b"v")}
    for number in range(30):
        versions[b"x"] = await table.put(b"x", b"%d" % number)
    table.container.auto_commit = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.tables.compact, "t")
        for _ in range(durable_count):
            await trio.testing.wait_all_tasks_blocked()
            table.container.commit(1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    table.container.crash(durable_count=0)
    container = table.container.reopen()
    container.auto_commit = True
    again = Table(container=container, settings=EAGER)
    assert await again.get(b"kept") == (b"v", versions[b"kept"])
    assert await again.get(b"x") == (b"29", versions[b"x"])
    assert (await again.tables.info("t")).entry_count == 2
    await again.tables.compact("t")
    again.forget_index()
    assert await again.everything() == {b"kept": b"v", b"x": b"29"}
