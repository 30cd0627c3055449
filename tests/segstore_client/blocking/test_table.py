"""A client of key-value tables against a store that loses answers, and pages of entries."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import pytest

from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.hashing import table_key_hash
from pravega_wire.sessions.routes import SegmentRange
from segstore_client.blocking.table import BlockingTable
from segstore_client.controller.controller_client import Purpose, TableSettings
from segstore_client.errors import ConflictError, UsageError
from segstore_client.steps import table_steps
from segstore_client.steps.table_steps import ABSENT, ANY_VERSION

HALF = 0.5


class Store:
    """Two table segments in memory; the answers to the next ``lost`` requests do not arrive."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, tuple[bytes, int]]] = {}
        self.lost = 0
        self.pages = 0
        self.tokens: list[tuple[str, str]] = []
        """The kind of each request, and its token."""
        self._versions = 0

    def answer(self, request: Any) -> wire.Reply:
        table = self.tables.setdefault(request.segment, {})
        self.tokens.append((type(request).__name__, request.delegation_token))
        i = request.request_id
        if isinstance(request, wire.ReadTable):
            found = [(key.key, *table.get(key.key, (b"", ABSENT))) for key in request.keys]
            entries = tuple(
                wire.TableEntry(wire.TableKey(key, version), value) for key, value, version in found
            )
            return wire.TableRead(i, request.segment, entries)
        if isinstance(request, wire.ReadTableEntries):
            self.pages += 1
            keys = sorted(
                key for key in table if request.args.from_key <= key <= request.args.to_key
            )
            entries = tuple(
                wire.TableEntry(wire.TableKey(key, table[key][1]), table[key][0])
                for key in keys[: request.suggested_entry_count]
            )
            return wire.TableEntriesRead(i, request.segment, entries, b"")
        if isinstance(request, wire.UpdateTableEntries):
            versions = []
            for entry in request.table_entries:
                if refusal := self._check(i, request.segment, entry.key):
                    return refusal
                self._versions += 1
                versions.append(self._versions)
                table[entry.key.key] = (bytes(entry.value), self._versions)
            return wire.TableEntriesUpdated(i, tuple(versions))
        assert isinstance(request, wire.RemoveTableKeys)
        (key,) = request.keys
        if refusal := self._check(i, request.segment, key):
            return refusal
        table.pop(key.key, None)
        return wire.TableKeysRemoved(i, request.segment)

    def _check(self, i: int, segment: str, key: wire.TableKey) -> wire.Reply | None:
        found = self.tables[segment].get(key.key, (b"", ABSENT))[1]
        if key.version in (ANY_VERSION, found):
            return None
        kind = wire.TableKeyDoesNotExist if found == ABSENT else wire.TableKeyBadVersion
        return kind(i, segment, "")


class FakeConnection:
    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def next_request_id(self) -> int:
        return 1

    def call(self, request: wire.Request) -> wire.Reply:
        reply = self._store.answer(request)
        if self._store.lost:
            self._store.lost -= 1
            raise ConnectionLostError("it broke")
        return reply


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def client(store: Store) -> BlockingTable:
    def store_access(scope: str, stream: str, purpose: Purpose) -> SimpleNamespace:
        """Return an access whose token is the name of its purpose."""
        return SimpleNamespace(
            token=lambda: purpose.name, connect=lambda *_, **__: FakeConnection(store)
        )

    controller: Any = SimpleNamespace(
        table_settings=lambda *_: TableSettings(2, 2, 1, 0),
        table_ranges=lambda *_: (SegmentRange(0, 0.0, HALF), SegmentRange(1, HALF, 1.0)),
        store_access=store_access,
        segment_address=lambda *_: ("127.0.0.1", 1),
        with_patience=lambda _: controller,
    )
    return BlockingTable(controller, "s", "k", patience=60.0)


KEYS = [bytes([high, low, last]) for high in (0, 7, 255) for low in (0, 255) for last in (0, 255)]


def test_keys_are_in_the_segment_of_their_primary_key(store: Store, client: BlockingTable) -> None:
    for key in KEYS:
        client.put(key, b"v" + key)
    for number, table in enumerate(
        store.tables[f"s/k_kvtable/{number}.#epoch.0"] for number in range(2)
    ):
        assert table
        assert {table_key_hash(key[:2]) >= HALF for key in table} == {bool(number)}
    found = client.get_all([*KEYS, b"???", *KEYS])
    values = [None if each is None else each.value for each in found]
    assert values == [*(b"v" + key for key in KEYS), None, *(b"v" + key for key in KEYS)]


@pytest.mark.parametrize("page", [1, 2, 500])
def test_all_entries_are_read_page_by_page(
    store: Store, client: BlockingTable, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(table_steps, "PAGE_ENTRIES", page)
    assert list(client.entries()) == []
    for key in KEYS:
        client.put(key, key)
    found = list(client.entries())
    assert sorted(each.key for each in found) == sorted(KEYS)
    assert all(each.key == each.value for each in found)
    assert store.pages >= len(KEYS) // page


def test_a_read_needs_the_right_to_read_alone(store: Store, client: BlockingTable) -> None:
    client.put(KEYS[0], b"1")
    client.get(KEYS[0])
    assert list(client.entries())
    client.remove(KEYS[0])
    assert sorted(set(store.tokens)) == [
        ("ReadTable", "READ"),
        ("ReadTableEntries", "READ"),
        ("RemoveTableKeys", "READ_WRITE"),
        ("UpdateTableEntries", "READ_WRITE"),
    ]


def test_conditions_are_kept(client: BlockingTable) -> None:
    key = KEYS[0]
    version = client.put(key, b"1", version=ABSENT)
    with pytest.raises(ConflictError, match="has another version"):
        client.put(key, b"2", version=ABSENT)
    with pytest.raises(ConflictError, match="has another version"):
        client.remove(key, version=version + 1)
    client.remove(key, version=version)
    client.remove(key)
    assert client.get(key) is None
    with pytest.raises(ConflictError, match="does not exist"):
        client.put(key, b"2", version=version)


@pytest.mark.parametrize(
    "update",
    [
        lambda client: client.put(KEYS[0], b"1", version=ABSENT),
        lambda client: client.remove(KEYS[1], version=1),
    ],
)
def test_an_update_whose_answer_is_lost_is_not_called_refused(
    store: Store, client: BlockingTable, update: Callable[[BlockingTable], object]
) -> None:
    assert client.put(KEYS[1], b"0") == 1
    store.lost = 1
    with pytest.raises(ConflictError, match="may be our own update"):
        update(client)
    store.lost = 2
    assert client.put(KEYS[2], b"2") > 0
    found = client.get(KEYS[2])
    assert found is not None
    assert found.value == b"2"


def test_entries_of_one_primary_key_change_together(client: BlockingTable) -> None:
    versions = client.put_all({b"ab1": b"one", b"ab2": b"two"})
    found = client.get_all([b"ab1", b"ab2"])
    assert [each and (each.value, each.version) for each in found] == [
        (b"one", versions[0]),
        (b"two", versions[1]),
    ]
    for wrong in ({b"ab1": b"", b"bb1": b""}, {}):
        with pytest.raises(UsageError, match="have one primary key"):
            client.put_all(wrong)


def test_a_part_of_the_entries_is_read(client: BlockingTable) -> None:
    for key in KEYS:
        client.put(key, key)
    found = client.entries(first=KEYS[1], last=KEYS[6])
    assert sorted(each.key for each in found) == KEYS[1:7]
    assert list(client.entries(first=KEYS[6], last=KEYS[1])) == []
    with pytest.raises(UsageError, match="has 3 bytes, not 4"):
        next(client.entries(first=b"four"))
