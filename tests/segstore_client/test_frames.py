"""Events of real streams as tables of Apache Arrow."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

import segstore_client
from pravega_spark.reading.event_batches import SCHEMA_DDL
from segstore_client import Position, UsageError, blocking
from segstore_client.frames import frame_schema
from support.event_loops import RunClient
from support.served_stream import run, served_stream

TYPES = {"binary": pa.binary(), "string": pa.string(), "bigint": pa.int64()}


def test_the_columns_are_those_of_the_data_source_for_spark() -> None:
    columns = [column.split() for column in SCHEMA_DDL.split(", ")]
    assert [(each.name, each.type) for each in frame_schema()] == [
        (name, TYPES[kind]) for name, kind in columns
    ]


async def test_a_stream_is_a_table_of_its_events(tmp_path: Path, run_client: RunClient) -> None:
    async def read(address: str) -> pa.Table:
        async with segstore_client.connect(address) as store:
            return await store.read_frame("s/t", start={0: 15})

    def read_blocking(address: str) -> pa.Table:
        with blocking.connect(address) as store:
            return store.read_frame("s/t", start={0: 15})

    async with served_stream(tmp_path, 3) as stream:
        frame = await run_client(read, stream.address)
        assert frame == await run(read_blocking, stream.address)
    assert frame.to_pylist() == [
        {"event": b"event 1", "scope": "s", "stream": "t", "segment_id": 0, "offset": 15},
        {"event": b"event 2", "scope": "s", "stream": "t", "segment_id": 0, "offset": 30},
    ]


async def test_a_stream_without_events_is_a_table_without_rows(
    tmp_path: Path, run_client: RunClient
) -> None:
    async def read(address: str) -> pa.Table:
        async with segstore_client.connect(address) as store:
            return await store.read_frame("s/t", start=Position.TAIL)

    async with served_stream(tmp_path, 3) as stream:
        frame = await run_client(read, stream.address)
    assert frame.schema == frame_schema()
    assert frame.num_rows == 0


async def test_rows_and_events_come_in_turns(tmp_path: Path, run_client: RunClient) -> None:
    async def read(address: str) -> list[bytes]:
        async with (
            segstore_client.connect(address) as store,
            store.reader("s/t", end=Position.TAIL) as reader,
        ):
            first = await anext(reader)
            [rows] = [batch async for batch in reader.arrow_batches()]
            return [first.data, *rows.column("event").to_pylist()]

    async with served_stream(tmp_path, 3) as stream:
        assert await run_client(read, stream.address) == [b"event 0", b"event 1", b"event 2"]


def test_without_arrow_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'segstore\[arrow\]'"):
        frame_schema()
