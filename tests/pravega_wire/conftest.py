"""Values of every command, drawn by the field types that the command table declares."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import strategies as st

from pravega_wire.codec import slots_of
from pravega_wire.commands import COMMANDS, Command, TableIteratorArgs, TableKey
from pravega_wire.connection import Connection
from pravega_wire.fields import Fixed, Framed, Prefixed, Rest

_INTEGERS = {
    "b": st.integers(-(2**7), 2**7 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "q": st.integers(-(2**63), 2**63 - 1),
}
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
_BYTES = st.binary(max_size=60)


def values_of_kind(kind: Any) -> st.SearchStrategy[Any]:
    match kind:
        case Fixed("?"):
            return st.booleans()
        case Fixed("16s"):
            return st.binary(min_size=16, max_size=16)
        case Fixed(format):
            return _INTEGERS[format]
        case Prefixed(_, text=True):
            return _TEXTS
        case Prefixed() | Framed() | Rest():
            return _BYTES
        case [item]:
            return st.lists(values_of_kind(item), max_size=4).map(tuple)
    return values_of_class(kind)


@functools.cache
def values_of_class(cls: type) -> st.SearchStrategy[Any]:
    if cls is TableIteratorArgs:  # the prefix filter always goes out empty
        return st.builds(cls, _BYTES, st.just(b""), _BYTES, _BYTES)
    values = st.builds(cls, *[values_of_kind(slot.kind) for slot in slots_of(cls)])
    if cls is TableKey:  # an empty key goes out without its version
        return values.map(lambda key: key if key.key else TableKey(b""))
    return values


@pytest.fixture(scope="session")
def command_values() -> Callable[[type[Command]], st.SearchStrategy[Command]]:
    """A strategy for the values of one command class."""
    return values_of_class


@pytest.fixture(params=COMMANDS.values(), ids=lambda cls: cls.__name__)
def command_class(request: pytest.FixtureRequest) -> type[Command]:
    """Each command of the table in turn."""
    cls: type[Command] = request.param
    return cls


@pytest.fixture(scope="session")
def feed_each_way() -> Callable[[Callable[[], Connection], bytes], list[Any]]:
    """Feed bytes to new connections whole, byte by byte and in front of a trailer.

    Asserts that all agree, and returns what came out.
    """

    def pieces(connection: Connection, chunks: Iterable[bytes]) -> list[Any]:
        return [command for chunk in chunks for command in connection.receive_data(chunk)]

    def feed(connect: Callable[[], Connection], data: bytes) -> list[Any]:
        whole = connect().receive_data(data)
        assert pieces(connect(), [data[i : i + 1] for i in range(len(data))]) == whole
        assert connect().receive_data(bytearray(data)) == whole
        assert pieces(connect(), [data[: len(data) // 2], data[len(data) // 2 :]]) == whole
        with_trailer = connect()
        assert with_trailer.receive_data(data + b"\0\0\0") == whole
        assert with_trailer.pending_bytes == 3
        return whole

    return feed
