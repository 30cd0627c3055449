"""The request for TLS, and what a bookie may answer."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from bookkeeper_client.connections.transports import request_tls
from bookkeeper_client.errors import BookieProtocolError, BookKeeperError
from bookkeeper_client.wire.start_tls import START_TLS, read_status
from support.models.memory_bookies import NO_TLS, TLS_BEGINS

HEADER = TLS_BEGINS[4:12]


def test_the_status_is_found_behind_a_header_of_any_length() -> None:
    assert read_status(TLS_BEGINS[4:]) == 0
    assert read_status(NO_TLS[4:]) == 404
    with_priority = b"\x0a\x08" + HEADER[2:] + b"\x20\x01" + b"\x10\x00"
    assert read_status(with_priority) == 0


async def answer(data: bytes, *, in_pieces: bool = False) -> None:
    """Ask a bookie that answers so, and hangs up."""
    ours, theirs = trio.testing.memory_stream_pair()
    pieces = [data[i : i + 1] for i in range(len(data))] if in_pieces else [data]
    for piece in pieces:
        await theirs.send_all(piece)
    await theirs.send_eof()
    await request_tls(ours)
    assert await theirs.receive_some() == START_TLS


@pytest.mark.parametrize("in_pieces", [True, False])
async def test_a_yes_is_found_however_its_bytes_arrive(in_pieces: bool) -> None:
    await answer(TLS_BEGINS, in_pieces=in_pieces)


@pytest.mark.parametrize(
    ("data", "kind", "sentence"),
    [
        (NO_TLS, BookKeeperError, "refuses TLS, with status 404"),
        (b"", BookKeeperError, "hangs up"),
        (TLS_BEGINS[:-1], BookKeeperError, "hangs up"),
        (b"\x7f\xff\xff\xff", BookieProtocolError, "a reply of 2147483647 bytes"),
        (b"\0\0\0\x08" + HEADER, BookieProtocolError, "without a status"),
        (b"\0\0\0\0", BookieProtocolError, "without a status"),
        (b"\0\0\0\x01\x10", BookieProtocolError, "ends too early"),
        (b"\0\0\0\x02\x10\x80", BookieProtocolError, "ends too early"),
        (b"\0\0\0\x04\x0a\x7f\x10\x00", BookieProtocolError, "without a status"),
        (b"\0\0\0\x04\x0d\x01\x10\x00", BookieProtocolError, "without a status"),
    ],
)
async def test_what_is_no_yes_is_refused(data: bytes, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        await answer(data)
