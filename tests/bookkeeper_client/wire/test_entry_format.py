"""Entries as bookies keep them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookkeeper_client.errors import DigestMismatchError
from bookkeeper_client.wire.entry_format import DigestType, EntryFormat, make_master_key
from bookkeeper_client.wire.protocol import LAST_ENTRY

DIGESTS = st.sampled_from(DigestType)
DIGEST_BYTES = {
    DigestType.CRC32: 8,
    DigestType.HMAC: 20,
    DigestType.CRC32C: 4,
    DigestType.DUMMY: 0,
}


def test_the_master_key_of_an_empty_password() -> None:
    assert make_master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


@given(
    DIGESTS,
    st.binary(max_size=10),
    st.integers(0, 2**62),
    st.integers(-1, 2**62),
    st.lists(st.binary(max_size=50), max_size=4),
)
def test_entries_round_trip(
    digest: DigestType, password: bytes, entry_id: int, confirmed: int, parts: list[bytes]
) -> None:
    entries = EntryFormat(5, digest, password)
    data = b"".join(entries.encode(entry_id, last_confirmed=confirmed, length=77, payload=parts))
    payload = b"".join(parts)
    assert len(data) == 32 + DIGEST_BYTES[digest] + len(payload)
    for asked in (entry_id, LAST_ENTRY):
        entry = entries.decode(data, asked)
        assert (entry.entry_id, entry.last_confirmed) == (entry_id, confirmed)
        assert (entry.length, entry.payload) == (77, payload)


@given(
    st.sampled_from([DigestType.CRC32, DigestType.HMAC, DigestType.CRC32C]),
    st.binary(max_size=40),
    st.data(),
)
def test_a_flipped_bit_is_noticed(digest: DigestType, payload: bytes, data: st.DataObject) -> None:
    entries = EntryFormat(5, digest, b"")
    sound = b"".join(entries.encode(3, last_confirmed=2, length=9, payload=(payload,)))
    bit = data.draw(st.integers(0, len(sound) * 8 - 1))
    damaged = bytearray(sound)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DigestMismatchError):
        entries.decode(bytes(damaged), 3)


@given(DIGESTS, st.binary(max_size=80))
def test_any_bytes_are_an_entry_or_refused(digest: DigestType, data: bytes) -> None:
    with contextlib.suppress(DigestMismatchError):
        EntryFormat(5, digest, b"").decode(data, 3)


def test_other_entries_than_asked_for_are_refused() -> None:
    entries = EntryFormat(5, DigestType.CRC32C, b"")
    other = b"".join(entries.encode(4, last_confirmed=2, length=9, payload=(b"x",)))
    with pytest.raises(DigestMismatchError, match="instead of 3"):
        entries.decode(other, 3)
    foreign = EntryFormat(6, DigestType.CRC32C, b"")
    with pytest.raises(DigestMismatchError, match="of ledger 5"):
        foreign.decode(other, LAST_ENTRY)


def test_hmac_tells_passwords_apart() -> None:
    written = EntryFormat(5, DigestType.HMAC, b"one")
    data = b"".join(written.encode(0, last_confirmed=-1, length=1, payload=(b"x",)))
    with pytest.raises(DigestMismatchError):
        EntryFormat(5, DigestType.HMAC, b"two").decode(data, 0)
