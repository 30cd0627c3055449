"""The bytes between a client and a bookie."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookkeeper_client.errors import BookieProtocolError
from bookkeeper_client.wire.protocol import (
    FRAME_BYTES_MAX,
    LAST_ENTRY,
    Code,
    Operation,
    Reply,
    ReplyDecoder,
    encode_add,
    encode_fencing_read,
    encode_read,
)

KEY = bytes(range(20))
INT64 = st.integers(-(2**63), 2**63 - 1)
REPLIES = st.builds(
    Reply,
    operation=st.sampled_from(Operation),
    code=st.sampled_from(Code),
    ledger_id=INT64,
    entry_id=INT64,
    entry=st.binary(max_size=100),
)


def encode_reply(reply: Reply, *, version: int = 2, number: int | None = None) -> bytes:
    code = reply.code if number is None else number
    assert code is not None
    head = version << 24 | reply.operation << 16
    body = struct.pack(">iiqq", head, code, reply.ledger_id, reply.entry_id) + reply.entry
    return struct.pack(">I", len(body)) + body


def test_requests_have_the_documented_bytes() -> None:
    assert b"".join(encode_add(KEY, (b"ent", b"ry"))) == (
        bytes.fromhex("0000001d 02010000") + KEY + b"entry"
    )
    assert b"".join(encode_add(KEY, (b"entry",), is_recovery=True)) == (
        bytes.fromhex("0000001d 02010006") + KEY + b"entry"
    )
    assert encode_read(7, LAST_ENTRY) == bytes.fromhex(
        "00000014 02020000 0000000000000007 ffffffffffffffff"
    )
    assert encode_fencing_read(7, 8, KEY) == (
        bytes.fromhex("00000028 02020005 0000000000000007 0000000000000008") + KEY
    )


def test_an_entry_that_a_bookie_would_refuse_is_not_sent() -> None:
    longest = bytes(FRAME_BYTES_MAX - 24)
    assert len(b"".join(encode_add(KEY, (longest,)))) == FRAME_BYTES_MAX + 4
    with pytest.raises(ValueError, match="at most"):
        encode_add(KEY, (longest, b"x"))


@given(st.lists(REPLIES, max_size=5), st.lists(st.integers(1, 60), max_size=30))
def test_replies_are_found_however_their_bytes_arrive(
    replies: list[Reply], steps: list[int]
) -> None:
    data = b"".join(map(encode_reply, replies))
    decoder = ReplyDecoder()
    found = []
    for step in steps:
        found += decoder.feed(data[:step])
        data = data[step:]
    assert found + decoder.feed(data) == replies


def test_a_code_that_is_not_known_is_no_success() -> None:
    reply = Reply(Operation.ADD, Code.OK, 1, 2)
    (found,) = ReplyDecoder().feed(encode_reply(reply, number=4711))
    assert found.code is None


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 23),
        struct.pack(">I", FRAME_BYTES_MAX + 1),
        encode_reply(Reply(Operation.ADD, Code.OK, 1, 2), version=3),
        struct.pack(">Iiiqq", 24, 0x02030000, 0, 1, 2),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BookieProtocolError):
        ReplyDecoder().feed(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_answered(data: bytes) -> None:
    with contextlib.suppress(BookieProtocolError):
        ReplyDecoder().feed(data)
