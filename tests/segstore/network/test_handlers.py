"""Requests about a segment, and the reply to each in every situation."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from pravega_wire import commands as wire
from pravega_wire.commands import NULL_ATTRIBUTE_VALUE
from segstore.errors import ContainerOfflineError
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_TYPE,
    CREATION_TIME,
    EVENT_COUNT,
    ROLLOVER_SIZE,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    AttributeUpdateType,
)
from segstore.testing.wire_client import WireClient
from support.models.memory_container import MemoryContainer
from support.models.memory_store import CREATED_MS, MemoryStore, memory_store

SEGMENT = "scope/stream/0.#epoch.0"
SOURCE = f"{SEGMENT}#transaction.{'0' * 32}"
MISSING = "scope/stream/7.#epoch.0"
ATTRIBUTE = bytes(range(16))


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        yield store


@pytest.fixture
async def client(store: MemoryStore) -> WireClient:
    return store.connect()


async def attributes(store: MemoryStore, name: str = SEGMENT) -> dict[bytes, int]:
    return dict(store.container.segments[name].attributes)


async def test_what_requests_wait_for_is_told_once(store: MemoryStore, client: WireClient) -> None:
    assert await client.call(wire.AskDelays(3)) == wire.DelaysTold(3, ())
    for container in store.containers.values():
        container.delays.append("the disk of /data is full")
    assert await client.call(wire.AskDelays(4)) == wire.DelaysTold(
        4, ("the disk of /data is full",)
    )


# ---- Life ----------------------------------------------------------------------------------------


async def test_create_keeps_the_scaling_policy(store: MemoryStore, client: WireClient) -> None:
    reply = await client.call(wire.CreateSegment(5, "scope/new/0", 1000, 2, "", 4096))
    assert reply == wire.SegmentCreated(5, "scope/new/0")
    assert await attributes(store, "scope/new/0") == {
        SCALE_POLICY_TYPE: 2,
        SCALE_POLICY_RATE: 1000,
        ROLLOVER_SIZE: 4096,
        CREATION_TIME: CREATED_MS,
    }


async def test_a_negative_rollover_size_means_none(store: MemoryStore, client: WireClient) -> None:
    await client.call(wire.CreateSegment(5, "scope/new/0", 0, 0, "", -1))
    assert (await attributes(store, "scope/new/0"))[ROLLOVER_SIZE] == 0


async def test_creating_again_is_refused_even_if_nothing_differs(client: WireClient) -> None:
    reply = await client.call(wire.CreateSegment(5, SEGMENT, 0, 0, ""))
    assert reply == wire.SegmentAlreadyExists(5, SEGMENT, "")


async def test_a_deleted_name_can_be_created_again(client: WireClient) -> None:
    assert await client.call(wire.DeleteSegment(1, SEGMENT, "")) == wire.SegmentDeleted(1, SEGMENT)
    created = await client.call(wire.CreateSegment(2, SEGMENT, 0, 0, ""))
    assert created == wire.SegmentCreated(2, SEGMENT)


@pytest.mark.parametrize("name", ["", "/", "a//b", "../../etc/passwd", "a/./b", "a/\0/b", "a/.."])
async def test_names_that_lead_nowhere_good_are_refused(client: WireClient, name: str) -> None:
    for request in (wire.CreateSegment(1, name, 0, 0, ""), wire.CreateTableSegment(1, name, "")):
        reply = await client.call(request)
        assert isinstance(reply, wire.ErrorMessage)
        assert reply.error_code == 0


async def test_seal_answers_and_a_second_seal_says_so(client: WireClient) -> None:
    assert await client.call(wire.SealSegment(1, SEGMENT, "")) == wire.SegmentSealed(1, SEGMENT)
    again = await client.call(wire.SealSegment(2, SEGMENT, ""))
    assert again == wire.SegmentIsSealed(2, SEGMENT, "", -1)


async def test_truncate_moves_the_start(store: MemoryStore, client: WireClient) -> None:
    await store.container.append(SEGMENT, b"abcdef")
    await store.container.seal_segment(SEGMENT)
    reply = await client.call(wire.TruncateSegment(1, SEGMENT, 4, ""))
    assert reply == wire.SegmentTruncated(1, SEGMENT)
    for wrong in (3, 7):
        reply = await client.call(wire.TruncateSegment(2, SEGMENT, wrong, ""))
        assert reply == wire.SegmentIsTruncated(2, SEGMENT, 4, "", wrong)


async def test_info_tells_offsets_and_state(store: MemoryStore, client: WireClient) -> None:
    await store.container.append(SEGMENT, b"abcdef")
    await store.container.truncate_segment(SEGMENT, offset=2)
    reply = await client.call(wire.GetStreamSegmentInfo(1, SEGMENT, ""))
    assert reply == wire.StreamSegmentInfo(
        request_id=1,
        segment=SEGMENT,
        exists=True,
        is_sealed=False,
        is_deleted=False,
        last_modified=0,
        write_offset=6,
        start_offset=2,
    )


@pytest.mark.parametrize(
    "request_",
    [
        wire.SealSegment(3, MISSING, ""),
        wire.DeleteSegment(3, MISSING, ""),
        wire.GetStreamSegmentInfo(3, MISSING, ""),
        wire.GetSegmentAttribute(3, MISSING, ATTRIBUTE, ""),
        wire.UpdateSegmentAttribute(3, MISSING, ATTRIBUTE, 1, 2, ""),
        wire.UpdateSegmentPolicy(3, MISSING, 1, 2, ""),
        wire.GetTableSegmentInfo(3, MISSING, ""),
        wire.DeleteTableSegment(3, MISSING, False, ""),
        wire.DeleteTableSegment(3, MISSING, True, ""),
        wire.UpdateTableEntries(3, MISSING, "", ()),
        wire.RemoveTableKeys(3, MISSING, "", ()),
        wire.ReadTable(3, MISSING, "", ()),
        wire.ReadTableKeys(3, MISSING, "", 1),
        wire.ReadTableEntries(3, MISSING, "", 1),
        wire.ReadTableEntriesDelta(3, MISSING, "", 0, 1),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_requests_about_a_missing_segment(client: WireClient, request_: wire.Request) -> None:
    assert await client.call(request_) == wire.NoSuchSegment(3, MISSING, "", -1)


async def test_truncating_a_missing_segment_repeats_the_offset(client: WireClient) -> None:
    reply = await client.call(wire.TruncateSegment(3, MISSING, 12, ""))
    assert reply == wire.NoSuchSegment(3, MISSING, "", 12)


# ---- Attributes ----------------------------------------------------------------------------------


async def test_an_absent_attribute_reads_as_null(client: WireClient) -> None:
    reply = await client.call(wire.GetSegmentAttribute(1, SEGMENT, ATTRIBUTE, ""))
    assert reply == wire.SegmentAttribute(1, NULL_ATTRIBUTE_VALUE)


async def test_attributes_are_compared_and_set(client: WireClient) -> None:
    async def update(new: int, expected: int) -> bool:
        await client.send(wire.UpdateSegmentAttribute(1, SEGMENT, ATTRIBUTE, new, expected, ""))
        reply = await client.expect(wire.SegmentAttributeUpdated)
        assert reply.request_id == 1
        return reply.success

    async def value() -> int:
        await client.send(wire.GetSegmentAttribute(1, SEGMENT, ATTRIBUTE, ""))
        return (await client.expect(wire.SegmentAttribute)).value

    assert not await update(5, 0)
    assert await update(5, NULL_ATTRIBUTE_VALUE)
    assert await value() == 5
    assert not await update(6, 4)
    assert await update(6, 5)
    assert await update(NULL_ATTRIBUTE_VALUE, 6)
    assert await value() == NULL_ATTRIBUTE_VALUE
    assert await update(7, NULL_ATTRIBUTE_VALUE)


async def test_a_sealed_segments_attributes_stay(store: MemoryStore, client: WireClient) -> None:
    await store.container.seal_segment(SEGMENT)
    request = wire.UpdateSegmentAttribute(1, SEGMENT, ATTRIBUTE, 5, NULL_ATTRIBUTE_VALUE, "")
    assert await client.call(request) == wire.SegmentIsSealed(1, SEGMENT, "", -1)


async def test_the_type_of_a_segment_cannot_be_modified(client: WireClient) -> None:
    request = wire.UpdateSegmentAttribute(1, SEGMENT, ATTRIBUTE_SEGMENT_TYPE, 1, -(2**63), "")
    reply = await client.call(request)
    assert isinstance(reply, wire.ErrorMessage)
    assert (reply.request_id, reply.segment, reply.error_code) == (1, SEGMENT, 0)


async def test_the_policy_is_replaced(store: MemoryStore, client: WireClient) -> None:
    reply = await client.call(wire.UpdateSegmentPolicy(1, SEGMENT, 77, 1, ""))
    assert reply == wire.SegmentPolicyUpdated(1, SEGMENT)
    assert await attributes(store) == {SCALE_POLICY_TYPE: 1, SCALE_POLICY_RATE: 77}


# ---- Merges --------------------------------------------------------------------------------------


async def test_a_tables_bytes_are_the_tables_alone(client: WireClient) -> None:
    table = "scope/table/0"
    await client.call(wire.CreateTableSegment(1, table, ""))
    merges = [wire.MergeSegments(5, a, b, "") for a, b in ((table, SEGMENT), (SEGMENT, table))]
    for request in (*merges, wire.TruncateSegment(5, table, 0, "")):
        assert isinstance(await client.call(request), wire.ErrorMessage)


async def make_source(
    store: MemoryStore, data: bytes, *, name: str = SOURCE, events: int = 1
) -> None:
    await store.container.create_segment(name, attributes={EVENT_COUNT: events})
    await store.container.append(name, data)


async def test_a_merge_tells_the_new_length(store: MemoryStore, client: WireClient) -> None:
    await store.container.append(SEGMENT, b"12")
    await make_source(store, b"345")
    reply = await client.call(wire.MergeSegments(1, SEGMENT, SOURCE, ""))
    assert reply == wire.SegmentsMerged(1, SEGMENT, SOURCE, 5)
    assert (await attributes(store))[EVENT_COUNT] == 1


async def test_a_merge_repeated_gets_the_same_answer(
    store: MemoryStore, client: WireClient
) -> None:
    await make_source(store, b"345")
    await client.call(wire.MergeSegments(1, SEGMENT, SOURCE, ""))
    await store.container.append(SEGMENT, b"67")
    reply = await client.call(wire.MergeSegments(2, SEGMENT, SOURCE, ""))
    assert reply == wire.SegmentsMerged(2, SEGMENT, SOURCE, 5)


async def test_merge_refusals_name_the_source(store: MemoryStore, client: WireClient) -> None:
    reply = await client.call(wire.MergeSegments(1, SEGMENT, SOURCE, ""))
    assert reply == wire.NoSuchSegment(1, SOURCE, "", -1)
    await make_source(store, b"345")
    await store.container.seal_segment(SEGMENT)
    reply = await client.call(wire.MergeSegments(2, SEGMENT, SOURCE, ""))
    assert reply == wire.SegmentIsSealed(2, SOURCE, "", -1)


async def test_a_merge_under_a_condition_that_fails(store: MemoryStore, client: WireClient) -> None:
    await make_source(store, b"345")
    kind = int(AttributeUpdateType.REPLACE_IF_EQUALS)
    update = wire.AttributeUpdate(ATTRIBUTE, kind, 2, 1)
    reply = await client.call(wire.MergeSegments(1, SEGMENT, SOURCE, "", (update,)))
    assert reply == wire.SegmentAttributeUpdated(1, False)
    assert store.container.segment_info(SEGMENT).length == 0
    update = wire.AttributeUpdate(ATTRIBUTE, kind, 2, NULL_ATTRIBUTE_VALUE)
    reply = await client.call(wire.MergeSegments(1, SEGMENT, SOURCE, "", (update,)))
    assert reply == wire.SegmentsMerged(1, SEGMENT, SOURCE, 3)
    assert (await attributes(store))[ATTRIBUTE] == 2


async def test_an_unknown_attribute_verb_is_an_illegal_argument(
    store: MemoryStore, client: WireClient
) -> None:
    await make_source(store, b"345")
    update = wire.AttributeUpdate(ATTRIBUTE, 9, 2, 1)
    reply = await client.call(wire.MergeSegments(1, SEGMENT, SOURCE, "", (update,)))
    assert isinstance(reply, wire.ErrorMessage)


async def test_a_batch_merges_in_order_and_counts_missing_sources_as_merged(
    store: MemoryStore, client: WireClient
) -> None:
    sources = tuple(f"{SEGMENT}#transaction.{number:032x}" for number in range(4))
    await make_source(store, b"bb", name=sources[1], events=2)
    await make_source(store, b"c", name=sources[2], events=3)
    reply = await client.call(wire.MergeSegmentsBatch(1, SEGMENT, sources, ""))
    lengths = (0, 2, 3, 3)
    assert reply == wire.SegmentsBatchMerged(
        1, SEGMENT, tuple(map(wire.MergedSource, sources, lengths))
    )
    result = await store.container.read(SEGMENT, offset=0, length_max=9)
    assert result.data == b"bbc"
    assert (await attributes(store))[EVENT_COUNT] == 5


async def test_a_batch_into_a_missing_target_names_the_target(
    store: MemoryStore, client: WireClient
) -> None:
    target = MISSING
    source = f"{target}#transaction.{'0' * 32}"
    await make_source(store, b"x", name=source)
    for sources in ((source,), (f"{target}#transaction.{'1' * 32}",)):
        reply = await client.call(wire.MergeSegmentsBatch(1, target, sources, ""))
        assert reply == wire.NoSuchSegment(1, target, "", -1)
    assert store.container.segment_info(source).length == 1


async def test_segments_of_different_containers_do_not_merge() -> None:
    async with memory_store(container_count=4) as store:
        client = store.connect()
        names = ["examples/test/0", "examples/test/1"]
        for name in names:
            await client.call(wire.CreateSegment(1, name, 0, 0, ""))
        assert isinstance(
            await client.call(wire.MergeSegments(1, names[0], names[1], "")), wire.ErrorMessage
        )
        assert isinstance(
            await client.call(wire.MergeSegmentsBatch(1, names[0], (names[1],), "")),
            wire.ErrorMessage,
        )


# ---- Tables --------------------------------------------------------------------------------------

TABLE = "scope/table_kvtable/0.#epoch.0"


def entry(key: bytes, value: bytes, version: int = wire.NO_VERSION) -> wire.TableEntry:
    return wire.TableEntry(wire.TableKey(key, version), value)


async def create_table(client: WireClient, *, key_length: int = 0) -> None:
    reply = await client.call(wire.CreateTableSegment(1, TABLE, "", False, key_length))
    assert reply == wire.SegmentCreated(1, TABLE)


async def test_a_table_from_creation_to_deletion(client: WireClient) -> None:
    await create_table(client)
    again = await client.call(wire.CreateTableSegment(2, TABLE, ""))
    assert again == wire.SegmentAlreadyExists(2, TABLE, "")
    entries = (entry(b"a", b"1"), entry(b"b", b"2", wire.NOT_EXISTS))
    reply = await client.call(wire.UpdateTableEntries(3, TABLE, "", entries))
    assert reply == wire.TableEntriesUpdated(3, (0, 19))
    info = await client.call(wire.GetTableSegmentInfo(4, TABLE, ""))
    assert info == wire.TableSegmentInfo(4, TABLE, 0, 38, 2, 0)
    reply = await client.call(wire.DeleteTableSegment(5, TABLE, True, ""))
    assert reply == wire.TableSegmentNotEmpty(5, TABLE, "")
    reply = await client.call(wire.DeleteTableSegment(6, TABLE, False, ""))
    assert reply == wire.SegmentDeleted(6, TABLE)


async def test_a_table_answers_each_key_in_order(client: WireClient) -> None:
    await create_table(client)
    await client.call(wire.UpdateTableEntries(1, TABLE, "", (entry(b"a", b"1"),)))
    keys = (wire.TableKey(b"x"), wire.TableKey(b"a"))
    reply = await client.call(wire.ReadTable(2, TABLE, "", keys))
    assert reply == wire.TableRead(
        2, TABLE, (entry(b"x", b"", wire.NOT_EXISTS), entry(b"a", b"1", 0))
    )


async def test_failed_table_conditions(client: WireClient) -> None:
    await create_table(client)
    await client.call(wire.UpdateTableEntries(1, TABLE, "", (entry(b"a", b"1"),)))
    missing = await client.call(wire.UpdateTableEntries(2, TABLE, "", (entry(b"x", b"", 5),)))
    assert missing == wire.TableKeyDoesNotExist(2, TABLE, "")
    wrong = await client.call(wire.UpdateTableEntries(3, TABLE, "", (entry(b"a", b"", 5),)))
    assert wrong == wire.TableKeyBadVersion(3, TABLE, "")
    wrong = await client.call(wire.RemoveTableKeys(4, TABLE, "", (wire.TableKey(b"a", -1),)))
    assert wrong == wire.TableKeyBadVersion(4, TABLE, "")
    gone = await client.call(wire.RemoveTableKeys(5, TABLE, "", (wire.TableKey(b"x", -1),)))
    assert gone == wire.TableKeysRemoved(5, TABLE)


async def test_a_wrong_table_length_is_told_with_the_right_one(client: WireClient) -> None:
    await create_table(client)
    await client.call(wire.UpdateTableEntries(1, TABLE, "", (entry(b"a", b"1"),)))
    update = await client.call(wire.UpdateTableEntries(2, TABLE, "", (entry(b"a", b"2"),), 7))
    assert update == wire.SegmentIsTruncated(2, TABLE, 19, "", 7)
    removal = await client.call(wire.RemoveTableKeys(3, TABLE, "", (wire.TableKey(b"a"),), 8))
    assert removal == wire.SegmentIsTruncated(3, TABLE, 19, "", 8)


@pytest.mark.parametrize("key_length", [0, 1])
async def test_table_conditions_fail_alike_in_both_layouts(
    client: WireClient, key_length: int
) -> None:
    """An absent key comes before a wrong version, wherever they are in the batch."""
    await create_table(client, key_length=key_length)
    await client.call(wire.UpdateTableEntries(1, TABLE, "", (entry(b"a", b"1"),)))
    missing, bad = wire.TableKeyDoesNotExist(2, TABLE, ""), wire.TableKeyBadVersion(2, TABLE, "")
    for versions, expected in (
        ({b"a": wire.NOT_EXISTS}, bad),
        ({b"a": 1}, bad),
        ({b"x": 1}, missing),
        ({b"a": 1, b"x": 1}, missing),
        ({b"a": 0, b"x": 1}, missing),
        ({b"x": wire.NOT_EXISTS, b"a": 1}, bad),
    ):
        keys = tuple(wire.TableKey(key, version) for key, version in versions.items())
        entries = tuple(wire.TableEntry(key, b"") for key in keys)
        assert await client.call(wire.UpdateTableEntries(2, TABLE, "", entries)) == expected
        assert await client.call(wire.RemoveTableKeys(2, TABLE, "", keys)) == expected
    info = await client.call(wire.GetTableSegmentInfo(3, TABLE, ""))
    assert info == wire.TableSegmentInfo(3, TABLE, 0, 19, 1, key_length)
    removal = wire.RemoveTableKeys(4, TABLE, "", (wire.TableKey(b"a", 0),))
    assert await client.call(removal) == wire.TableKeysRemoved(4, TABLE)
    assert await client.call(removal) == wire.TableKeyDoesNotExist(4, TABLE, "")


async def test_what_no_table_takes_is_an_illegal_argument(client: WireClient) -> None:
    await create_table(client)
    for request in (
        wire.UpdateTableEntries(2, TABLE, "", (entry(bytes(8193), b""),)),
        wire.UpdateTableEntries(2, TABLE, "", (entry(b"k", bytes(1024 * 1024 - 8191)),)),
        wire.UpdateTableEntries(2, TABLE, "", (entry(b"", b""),)),
        wire.RemoveTableKeys(2, TABLE, "", (wire.TableKey(bytes(8193)),)),
        wire.ReadTableKeys(2, TABLE, "", 1, wire.TableIteratorArgs(b"token")),
        wire.ReadTableKeys(2, TABLE, "", 1, wire.TableIteratorArgs(b"", b"", b"from", b"")),
        wire.ReadTableEntries(2, TABLE, "", 1, wire.TableIteratorArgs(b"", b"", b"", b"to")),
        wire.ReadTableEntriesDelta(2, TABLE, "", 1, 10),
        wire.ReadTableEntriesDelta(2, TABLE, "", -1, 10),
    ):
        reply = await client.call(request)
        assert isinstance(reply, wire.ErrorMessage)
        assert (reply.request_id, reply.segment, reply.error_code) == (2, TABLE, 0)


async def test_hash_tables_iterate_by_token(client: WireClient) -> None:
    await create_table(client)
    entries = tuple(entry(b"%d" % number, b"v") for number in range(5))
    await client.call(wire.UpdateTableEntries(1, TABLE, "", entries))
    seen: list[bytes] = []
    token = b""
    while True:
        args = wire.TableIteratorArgs(token)
        await client.send(wire.ReadTableKeys(2, TABLE, "", 2, args))
        keys = await client.expect(wire.TableKeysRead)
        await client.send(wire.ReadTableEntries(3, TABLE, "", 2, args))
        page = await client.expect(wire.TableEntriesRead)
        assert [item.key for item in page.entries] == list(keys.keys)
        assert page.continuation_token == keys.continuation_token
        if not keys.keys:
            break
        seen += [key.key for key in keys.keys]
        token = keys.continuation_token
    assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_delta_leads_from_position_to_position(client: WireClient) -> None:
    await create_table(client)
    await client.call(wire.UpdateTableEntries(1, TABLE, "", (entry(b"a", b"1"),)))
    first = await client.call(wire.ReadTableEntriesDelta(2, TABLE, "", 0, 10))
    assert first == wire.TableEntriesDeltaRead(2, TABLE, (entry(b"a", b"1", 0),), False, True, 19)


async def test_what_fixed_key_tables_do_not_do(client: WireClient) -> None:
    await create_table(client, key_length=2)
    info = await client.call(wire.GetTableSegmentInfo(1, TABLE, ""))
    assert info == wire.TableSegmentInfo(1, TABLE, 0, 0, 0, 2)
    delta = await client.call(wire.ReadTableEntriesDelta(2, TABLE, "", 0, 10))
    assert delta == wire.OperationUnsupported(2, "readTableEntriesDelta", "")
    deletion = await client.call(wire.DeleteTableSegment(3, TABLE, True, ""))
    assert deletion == wire.OperationUnsupported(3, "deleteTableSegment", "")
    token = wire.TableIteratorArgs(bytes(16))
    iteration = await client.call(wire.ReadTableKeys(4, TABLE, "", 1, token))
    assert isinstance(iteration, wire.ErrorMessage)
    wrong_key = await client.call(wire.UpdateTableEntries(5, TABLE, "", (entry(b"a", b""),)))
    assert isinstance(wrong_key, wire.ErrorMessage)
    assert (wrong_key.request_id, wrong_key.segment, wrong_key.error_code) == (5, TABLE, 0)


async def test_fixed_key_tables_iterate_ranges_in_order(client: WireClient) -> None:
    await create_table(client, key_length=1)
    entries = tuple(entry(bytes([number]), b"") for number in (200, 3, 127, 128))
    await client.call(wire.UpdateTableEntries(1, TABLE, "", entries))
    args = wire.TableIteratorArgs(b"", b"", b"\x03", b"\x80")
    await client.send(wire.ReadTableKeys(2, TABLE, "", 10, args))
    page = await client.expect(wire.TableKeysRead)
    assert [key.key for key in page.keys] == [b"\x03", b"\x7f", b"\x80"]


async def test_an_update_of_a_deleted_table_by_its_segment(client: WireClient) -> None:
    await create_table(client)
    await client.call(wire.UpdateTableEntries(1, TABLE, "", (entry(b"a", b"1"),)))
    await client.call(wire.DeleteSegment(2, TABLE, ""))
    await create_table(client)
    keys = (wire.TableKey(b"a"),)
    reply = await client.call(wire.ReadTable(3, TABLE, "", keys))
    assert reply == wire.TableRead(3, TABLE, (entry(b"a", b"", wire.NOT_EXISTS),))


# ---- Elsewhere and offline -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "operation"),
    [
        (wire.FlushToStorage(0, "", 6), "flushToStorage"),
        (wire.ListStorageChunks(SEGMENT, "", 6), "listStorageChunks"),
        (wire.LocateOffset(6, SEGMENT, 0, ""), "locateOffset"),
    ],
)
async def test_what_is_not_served_is_said_to_be_unsupported(
    client: WireClient, request_: wire.Request, operation: str
) -> None:
    assert await client.call(request_) == wire.OperationUnsupported(6, operation, "")


async def test_segments_of_other_hosts_are_told_apart(store: MemoryStore) -> None:
    # examples/test/0 is in container 0 of 4, examples/test/1 in container 1.
    store.registry._container_count = 4
    client = store.connect()
    segment = "examples/test/1"
    for request in (
        wire.CreateSegment(5, segment, 0, 0, ""),
        wire.SetupAppend(5, ATTRIBUTE, segment, ""),
        wire.ReadSegment(segment, 3, 100, "", 5),
        wire.GetStreamSegmentInfo(5, segment, ""),
        wire.ReadTable(5, segment, "", ()),
    ):
        assert await client.call(request) == wire.WrongHost(5, segment, "", "")
    reply = await client.call(wire.CreateSegment(5, "examples/test/0", 0, 0, ""))
    assert isinstance(reply, wire.SegmentCreated)


@pytest.mark.parametrize(
    "request_",
    [
        wire.GetStreamSegmentInfo(3, SEGMENT, ""),
        wire.CreateSegment(3, "scope/other/0", 0, 0, ""),
        wire.ReadSegment(SEGMENT, 0, 10, "", 3),
        wire.ReadTable(3, SEGMENT, "", ()),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_a_container_that_recovers_sends_clients_to_look_for_it_and_disturbs_no_others(
    store: MemoryStore, request_: wire.Request
) -> None:
    store.recovering[0] = trio.Event()
    store.fail()
    await trio.testing.wait_all_tasks_blocked()
    client = store.connect()
    for _ in range(2):
        reply = await client.call(request_)
        assert isinstance(reply, wire.WrongHost)
        assert reply.request_id == 3
    store.recovering[0].set()
    await store.wait_online(SEGMENT)
    assert isinstance(
        await client.call(wire.GetStreamSegmentInfo(3, SEGMENT, "")), wire.StreamSegmentInfo
    )


async def test_a_reply_that_does_not_fit_into_a_frame_is_an_error_message(
    client: WireClient,
) -> None:
    await create_table(client)
    value = bytes(1 << 19)
    await client.call(wire.UpdateTableEntries(1, TABLE, "", (entry(b"a", value),)))
    keys = (wire.TableKey(b"a"),) * 40
    reply = await client.call(wire.ReadTable(3, TABLE, "", keys))
    assert isinstance(reply, wire.ErrorMessage)
    assert reply.request_id == 3


# ---- Owners that have lost the container ---------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        wire.GetStreamSegmentInfo(7, SEGMENT, ""),
        wire.GetStreamSegmentInfo(7, MISSING, ""),
        wire.GetSegmentAttribute(7, SEGMENT, ATTRIBUTE, ""),
        wire.SetupAppend(7, ATTRIBUTE, SEGMENT, ""),
        wire.SetupAppend(7, ATTRIBUTE, MISSING, ""),
        wire.CreateSegment(7, SEGMENT, 0, 0, ""),
        wire.ReadSegment(MISSING, 0, 100, "", 7),
    ],
    ids=lambda request: type(request).__name__,
)
@pytest.mark.parametrize("is_lost", [False, True])
async def test_an_owner_in_doubt_answers_when_it_is_confirmed(
    request_: wire.Request,
    is_lost: bool,
    store: MemoryStore,
    client: WireClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = await client.call(request_)
    asked: list[object] = []

    async def confirm(self: MemoryContainer) -> None:
        asked.append(self)
        await trio.lowlevel.checkpoint()
        if is_lost:
            raise ContainerOfflineError("another owner has it")

    monkeypatch.setattr(MemoryContainer, "may_answer", False)
    monkeypatch.setattr(MemoryContainer, "confirm_answer", confirm)
    answer = await client.call(request_)
    assert len(asked) == 1
    if is_lost:
        assert isinstance(answer, wire.WrongHost)
    else:
        assert answer == expected


async def test_an_owner_in_doubt_sends_bytes_without_a_confirmation(
    store: MemoryStore, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def confirm(self: MemoryContainer) -> None:
        await trio.lowlevel.checkpoint()
        raise ContainerOfflineError("another owner has it")

    await store.container.append(SEGMENT, b"bytes")
    await store.container.truncate_segment(SEGMENT, offset=2)
    await store.container.seal_segment(SEGMENT)
    monkeypatch.setattr(MemoryContainer, "may_answer", False)
    monkeypatch.setattr(MemoryContainer, "confirm_answer", confirm)
    start = await client.call(wire.ReadSegment(SEGMENT, 1, 100, "", 7))
    assert start == wire.SegmentIsTruncated(7, SEGMENT, 2, "", 1)
    for offset, data in ((2, b"tes"), (5, b"")):
        reply = await client.call(wire.ReadSegment(SEGMENT, offset, 100, "", 7))
        assert reply == wire.SegmentRead(SEGMENT, offset, False, True, data, 7)
