from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.commands import NO_VERSION
from segstore.tables.entries import (
    HEADER_BYTES,
    KEY_BYTES_MAX,
    StoredEntry,
    TableDataError,
    encode_entry,
    encoded_length,
    parse_entries,
)

keys = st.binary(min_size=1, max_size=40)
values = st.none() | st.binary(max_size=100)
versions = st.just(NO_VERSION) | st.integers(0, 2**63 - 1)


def test_an_entry_has_the_documented_bytes() -> None:
    assert encode_entry(b"key", b"value") == (
        b"\0" + b"\0\0\0\3" + b"\0\0\0\5" + b"\x80" + bytes(7) + b"key" + b"value"
    )
    assert encode_entry(b"k", None) == b"\0\0\0\0\1\xff\xff\xff\xff\x80" + bytes(7) + b"k"
    assert encode_entry(b"k", b"", version=7) == b"\0\0\0\0\1" + bytes(4) + bytes(7) + b"\7k"


@given(st.lists(st.tuples(keys, values, versions), max_size=20), st.integers(0, 2**40))
def test_entries_read_back_as_they_were_written(
    written: list[tuple[bytes, bytes | None, int]], offset: int
) -> None:
    expected = []
    data = b""
    for key, value, version in written:
        encoded = encode_entry(key, value, version=version)
        assert len(encoded) == encoded_length(key, value)
        position = offset + len(data)
        seen = position if version == NO_VERSION else version
        expected.append(StoredEntry(key, value, seen, position, len(encoded)))
        data += encoded
    assert list(parse_entries("t", data, offset=offset)) == expected


@given(keys, values, st.data())
def test_an_incomplete_last_entry_is_left_out(
    key: bytes, value: bytes | None, data: st.DataObject
) -> None:
    encoded = encode_entry(key, value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    [entry] = parse_entries("t", encoded + encoded[:cut], offset=0)
    assert entry.key == key


@pytest.mark.parametrize(
    "header",
    [
        (1, 1, 1, NO_VERSION),
        (0, 0, 1, NO_VERSION),
        (0, -1, 1, NO_VERSION),
        (0, KEY_BYTES_MAX + 1, 1, NO_VERSION),
        (0, 1, -2, NO_VERSION),
        (0, 1, 2**31 - 1, NO_VERSION),
        (0, 1, 1, -1),
    ],
)
def test_a_malformed_header_is_reported_with_its_offset(header: tuple[int, ...]) -> None:
    good = encode_entry(b"key", b"value")
    data = good + struct.pack(">Biiq", *header) + bytes(100)
    with pytest.raises(TableDataError) as caught:
        list(parse_entries("t", data, offset=1000))
    assert caught.value.offset == 1000 + len(good)


@given(st.binary(max_size=200))
def test_any_bytes_are_entries_or_damage(data: bytes) -> None:
    try:
        entries = list(parse_entries("t", data, offset=0))
    except TableDataError:
        return
    assert sum(entry.length for entry in entries) <= len(data)
    assert all(entry.length >= HEADER_BYTES + 1 for entry in entries)
