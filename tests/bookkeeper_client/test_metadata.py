"""The metadata of a ledger in ZooKeeper."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookkeeper_client.data_formats_pb2 import LedgerMetadataFormat
from bookkeeper_client.errors import MetadataError
from bookkeeper_client.metadata import (
    LedgerMetadata,
    Segment,
    State,
    decode_metadata,
    encode_metadata,
    ledger_path,
)
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.wire.entry_format import DigestType

OPEN = LedgerMetadata(
    quorums=Quorums(3, 3, 2),
    state=State.OPEN,
    segments=(Segment(0, ("a:1", "b:2", "c:3")),),
    digest_type=DigestType.CRC32C,
    password=b"",
    custom={"application": b"Pravega"},
    creation_token=9,
)


@st.composite
def all_metadata(draw: st.DrawFn) -> LedgerMetadata:
    ack, more, most = draw(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)))
    quorums = Quorums(ack + more + most, ack + more, ack)
    starts = sorted({0, *draw(st.lists(st.integers(1, 2**60), max_size=4))})
    names = [f"bookie-{i}:3181" for i in range(quorums.ensemble + 2)]
    state = draw(st.sampled_from(State))
    closed = {"last_entry_id": draw(st.integers(-1, 2**60)), "length": draw(st.integers(0, 2**60))}
    return LedgerMetadata(
        quorums=quorums,
        state=state,
        segments=tuple(
            Segment(start, tuple(draw(st.permutations(names))[: quorums.ensemble]))
            for start in starts
        ),
        digest_type=draw(st.none() | st.sampled_from(DigestType)),
        password=draw(st.none() | st.binary(max_size=5)),
        custom=draw(st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=3)),
        creation_token=draw(st.none() | st.integers(0, 2**63 - 1)),
        **(closed if state is State.CLOSED else {}),
    )


@given(all_metadata())
def test_metadata_round_trip(metadata: LedgerMetadata) -> None:
    assert decode_metadata(encode_metadata(metadata)) == metadata


def test_metadata_have_the_documented_bytes() -> None:
    body = bytes.fromhex(
        "0803 1003 1800 20ffffffffffffffffff01 2801"
        "3211 0a03613a31 0a03623a32 0a03633a33 1000"
        "3803 4200 4802 5a16 0a0b6170706c69636174696f6e 120750726176656761 6009"
    )
    head = b"BookieMetadataFormatVersion\t3\n" + bytes([len(body)])
    assert encode_metadata(OPEN) == head + body


def test_metadata_in_text_are_read() -> None:
    text = """BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 3
length: 0
lastEntryId: -1
state: IN_RECOVERY
segment {
  ensembleMember: "a:1"
  ensembleMember: "b:2"
  ensembleMember: "c:3"
  firstEntryId: 0
}
digestType: CRC32
password: "secret"
"""
    metadata = decode_metadata(text.encode())
    assert metadata.quorums == Quorums(3, 2, 2)
    assert (metadata.state, metadata.digest_type) == (State.IN_RECOVERY, DigestType.CRC32)
    assert metadata.password == b"secret"


def test_fields_that_are_not_known_survive_a_change() -> None:
    message = LedgerMetadataFormat()
    data = encode_metadata(OPEN)
    body = data.partition(b"\n")[2][1:] + bytes.fromhex("5005 e00701")  # ctime 5, field 124
    read = decode_metadata(data.partition(b"\n")[0] + b"\n" + bytes([len(body)]) + body)
    written = encode_metadata(read.begin_recovery())
    message.ParseFromString(written.partition(b"\n")[2][1:])
    assert message.ctime == 5
    assert bytes.fromhex("e00701") in written
    assert decode_metadata(written).state is State.IN_RECOVERY


def test_the_end_of_an_open_ledger_means_nothing() -> None:
    strange = replace(OPEN, last_entry_id=7, length=70)
    assert decode_metadata(encode_metadata(strange)) == OPEN


@pytest.mark.parametrize(
    "wrong",
    [
        replace(OPEN, segments=()),
        replace(OPEN, segments=(Segment(0, ("a:1", "b:2")),)),
        replace(OPEN, segments=(Segment(0, ("a:1", "b:2", "a:1")),)),
        replace(OPEN, segments=(OPEN.segments[0], OPEN.segments[0])),
        replace(OPEN, segments=(Segment(-1, ("a:1", "b:2", "c:3")),)),
        OPEN.close(-2, 0),
    ],
)
def test_metadata_that_contradict_themselves_are_refused(wrong: LedgerMetadata) -> None:
    with pytest.raises(MetadataError):
        decode_metadata(encode_metadata(wrong))


@given(st.binary(max_size=60))
def test_any_bytes_are_metadata_or_refused(data: bytes) -> None:
    for start in (b"", b"BookieMetadataFormatVersion\t3\n", b"BookieMetadataFormatVersion\t2\n"):
        with pytest.raises(MetadataError):
            decode_metadata(start + data)


def test_the_first_release_of_the_format_is_refused_in_words() -> None:
    with pytest.raises(MetadataError, match="2 and 3"):
        decode_metadata(b"BookieMetadataFormatVersion\t1\n3\n3\n0")


def test_segments_are_found_and_changed() -> None:
    metadata = OPEN.change_bookies(5, ("a:1", "d:4", "c:3")).change_bookies(
        9, ("e:5", "d:4", "c:3")
    )
    assert [metadata.segment_of(i).first_entry_id for i in (0, 4, 5, 8, 9, 99)] == [
        0, 0, 5, 5, 9, 9,
    ]  # fmt: skip
    again = metadata.change_bookies(9, ("e:5", "f:6", "c:3"))
    assert len(again.segments) == 3
    assert again.last_segment == Segment(9, ("e:5", "f:6", "c:3"))


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "00/0000/L0000"),
        (3, "00/0000/L0003"),
        (1234567890, "12/3456/L7890"),
        (2147483646, "21/4748/L3646"),
        (2147483647, "000/0000/0021/4748/L3647"),
        (2**63 - 1, "922/3372/0368/5477/L5807"),
    ],
)
def test_where_ledgers_are(ledger_id: int, path: str) -> None:
    assert ledger_path(ledger_id) == path


def test_no_ledger_is_below_zero() -> None:
    with pytest.raises(ValueError, match="-1"):
        ledger_path(-1)
