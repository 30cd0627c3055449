"""Values as the bytes of events, alone and through real streams."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

import segstore_client
from _fast.wire.events import DecodedEvent, ReadEvent
from segstore_client import Serializer, UnreadableEventError, UsageError, blocking, serializers
from support.event_loops import RunClient
from support.served_stream import run, served_stream


@dataclass(frozen=True)
class Order:
    """What a shop writes."""

    customer: str
    apples: int


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "customer", "type": "string"}, {"name": "apples", "type": "long"}],
}
POINTS: Serializer[tuple[int, int]] = Serializer(
    "a point", lambda point: struct.pack(">ii", *point), lambda data: struct.unpack(">ii", data)
)
TEXTS = st.text().filter(lambda text: text.isprintable())
LONGS = st.integers(-(2**63), 2**63 - 1)
CASES: Sequence[tuple[Serializer[Any], st.SearchStrategy[Any], bytes]] = [
    (serializers.BYTES, st.binary(), b""),
    (serializers.TEXT, TEXTS, b"\xff"),
    (serializers.json(), st.dictionaries(TEXTS, st.lists(st.integers(-100, 100))), b"{"),
    (serializers.json(Order), st.builds(Order, TEXTS, LONGS), b'{"customer":1}'),
    (serializers.avro(SCHEMA), st.fixed_dictionaries({"customer": TEXTS, "apples": LONGS}), b""),
    (serializers.protobuf(Timestamp), st.builds(Timestamp, seconds=LONGS), b"\x08"),
    (POINTS, st.tuples(st.integers(-9, 9), st.integers(-9, 9)), b"\0"),
]
"""Serializers, values that they have, and bytes that are none (but for bytes themselves)."""
NAMED = pytest.mark.parametrize(
    ("serializer", "values", "bad"), CASES, ids=[case[0].name for case in CASES]
)


def make_event(data: bytes, serializer: Serializer[Any]) -> ReadEvent[Any]:
    place = data, 0, 30, "s/t/0.#epoch.0"
    return DecodedEvent(*place, serializer.decoder) if serializer.decoder else ReadEvent(*place)


@NAMED
@given(st.data())
def test_a_value_comes_back_from_its_bytes(
    serializer: Serializer[Any], values: st.SearchStrategy[Any], bad: bytes, data: st.DataObject
) -> None:
    value = data.draw(values)
    event = make_event(serializer.encoder(value), serializer)
    assert event.value == value
    # It is made once.
    assert event.value is event.value


@NAMED
def test_an_event_that_is_no_value_says_where_it_is(
    serializer: Serializer[Any], values: st.SearchStrategy[Any], bad: bytes
) -> None:
    event = make_event(bad, serializer)
    if serializer is serializers.BYTES:
        assert event.value is bad
        return
    for _ in range(2):
        with pytest.raises(UnreadableEventError) as caught:
            assert event.value
    begin = f"the event at offset 30 of segment s/t/0.#epoch.0 is not {serializer.name}: "
    assert str(caught.value).startswith(begin)
    assert len(str(caught.value)) > len(begin)
    assert event.data == bad


@NAMED
def test_a_value_without_bytes_is_refused(
    serializer: Serializer[Any], values: st.SearchStrategy[Any], bad: bytes
) -> None:
    secret = type("Secret", (), {"__repr__": lambda self: "hidden"})()
    with pytest.raises(UsageError, match="Secret") as caught:
        serializer.encoder(secret)
    assert "hidden" not in str(caught.value)


def test_functions_that_give_no_bytes_are_refused() -> None:
    broken: Serializer[str] = Serializer("text", lambda text: text, lambda data: "")  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match="an event is bytes, not str"):
        broken.encoder("a")


@pytest.mark.parametrize("schema", ['{"type": "recordx"}', "{", {"type": "record"}, '"nosuch"'])
def test_what_is_no_avro_schema_is_refused(schema: Any) -> None:
    with pytest.raises(UsageError, match="this is no Avro schema: "):
        serializers.avro(schema)


def test_bytes_behind_an_avro_value_are_no_part_of_it() -> None:
    avro = serializers.avro(SCHEMA)
    event = make_event(avro.encoder({"customer": "a", "apples": 1}) + b"\0", avro)
    with pytest.raises(UnreadableEventError, match="1 bytes are left behind the value"):
        assert event.value


def test_without_fastavro_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(UsageError, match=r"pip install 'segstore\[avro\]'"):
        serializers.avro(SCHEMA)


ORDERS = [Order("a", 2), Order("b", 3), Order("a", 5)]


async def test_a_stream_has_values_of_a_program_that_does_not_block(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def trade(address: str) -> list[object]:
        orders = serializers.json(Order)
        async with segstore_client.connect(address) as store:
            await store.create_group("s/g", ["s/t"])
            async with store.writer("s/t", serializer=orders) as writer:
                await writer.write(ORDERS[0], key="a")
                writer.write_nowait(ORDERS[1], key="b")
                with pytest.raises(UsageError):
                    await writer.write(object())  # type: ignore[arg-type]
            async with store.transaction("s/t", serializer=orders) as transaction:
                await transaction.submit(ORDERS[2], key="a")
            seen: list[object] = []
            tail = segstore_client.Position.TAIL
            async with store.reader("s/t", end=tail, serializer=orders) as reader:
                seen.append([event.value async for event in reader])
            async with store.reader("s/t", end=tail, serializer=serializers.json()) as reader:
                seen.append([each.value async for batch in reader.batches() for each in batch])
            async with store.group("s/g").reader("r", serializer=orders) as shared:
                seen.append([(await anext(shared)).value for _ in ORDERS])
            return seen

    async with served_stream(tmp_path, 0) as stream:
        read, plain, shared = await run_client(trade, stream.address)
    assert read == shared == ORDERS
    assert plain == [{"customer": each.customer, "apples": each.apples} for each in ORDERS]


async def test_a_stream_has_values_of_a_program_that_blocks(tmp_path: Path) -> None:
    def trade(address: str) -> list[object]:
        orders = serializers.json(Order)
        with blocking.connect(address) as store:
            store.create_group("s/g", ["s/t"])
            with store.writer("s/t", serializer=orders) as writer:
                writer.write(ORDERS[0], key="a")
                writer.submit(ORDERS[1], key="b")
                with pytest.raises(UsageError):
                    writer.write(object())  # type: ignore[arg-type]
            with store.transaction("s/t", serializer=orders) as transaction:
                transaction.write(ORDERS[2], key="a")
            tail = segstore_client.Position.TAIL
            with store.reader("s/t", end=tail, serializer=orders) as reader:
                seen: list[object] = [[event.value for event in reader]]
            with store.group("s/g").reader("r", serializer=orders) as shared:
                seen.append([next(shared).value for _ in ORDERS])
            return seen

    async with served_stream(tmp_path, 0) as stream:
        assert await run(trade, stream.address) == [ORDERS, ORDERS]
