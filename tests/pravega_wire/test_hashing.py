"""Seeds and readings of hashes, against values that the clients compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.hashing import (
    attribute_id_of_name,
    container_hash,
    routing_key_hash,
    seed_of,
    table_key_hash,
)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("EventRouter", 1741865571),
        ("KeyValueTableRouter", -2020233499),
        ("SegmentToContainerMapper", 1661405012),
        ("SegmentAttribute", 817748169),
        ("", 0),
        # The least number of 32 bits.
        ("polygenelubricants", -(2**31)),
    ],
)
def test_seeds_are_the_hashes_of_their_names(name: str, seed: int) -> None:
    assert seed_of(name) == seed


@pytest.mark.parametrize(
    ("key", "fraction"),
    [
        ("", 0.24117842791623523),
        ("a", 0.9433912753816884),
        ("key", 0.8449093464660018),
        ("hello", 0.658716230571337),
    ],
)
def test_routing_keys_fall_where_the_clients_put_them(key: str, fraction: float) -> None:
    assert routing_key_hash(key) == fraction


@given(st.text(), st.binary())
def test_every_key_falls_in_the_unit_interval(text: str, key: bytes) -> None:
    assert 0.0 <= routing_key_hash(text) < 1.0
    assert 0.0 <= table_key_hash(key) < 1.0


def test_a_client_marks_attribute_has_its_known_id() -> None:
    expected = bytes.fromhex("7df9a874246cc9d69397cdd19ead68c5")
    assert attribute_id_of_name("RevisionStreamClientMark") == expected


def test_a_segment_without_containers_is_our_bug() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        container_hash("scope/stream/0", 0)
