"""Revisions of shared states: what is written is read, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.sessions.revisions import decode_revision, encode_state, encode_updates


@given(st.binary(max_size=50))
def test_a_state_is_read_as_it_was_written(data: bytes) -> None:
    assert decode_revision(encode_state(data)) == (True, [data])


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_updates_are_read_as_they_were_written(updates: list[bytes]) -> None:
    assert decode_revision(encode_updates(updates)) == (False, updates)


def test_they_are_the_official_client_s() -> None:
    assert encode_state(b"abc") == bytes.fromhex("00000001616263")
    assert encode_updates([b"a", b"bc"]) == bytes.fromhex("00000002 00000001 61 00000002 6263")


@pytest.mark.parametrize(
    "damaged", ["", "000000", "00000003", "0000000200000001", "00000002ffffffff"]
)
def test_damaged_revisions_are_refused(damaged: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_revision(bytes.fromhex(damaged))
