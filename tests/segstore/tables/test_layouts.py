from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.model.attributes import (
    ATTRIBUTE_ID_LENGTH,
    ATTRIBUTE_SEGMENT_TYPE,
    SegmentType,
    attribute_id_bytes,
    core_attribute,
    is_core_attribute,
)
from segstore.tables import layouts
from segstore.tables.layouts import FixedKeyLayout, HashLayout, backpointer, hash_key, successor


def test_the_bucket_of_a_key_is_the_head_of_its_sha256() -> None:
    assert hash_key(b"key") == hashlib.sha256(b"key").digest()[:16]


@pytest.mark.parametrize(
    ("digest", "bucket"),
    [
        ("8000000000000000" + "12" * 8, "8000000000000001" + "12" * 8),
        ("7fffffffffffffff" + "12" * 8, "7ffffffffffffffe" + "12" * 8),
        ("7ffffffffffffffe" + "12" * 8, "7ffffffffffffffe" + "12" * 8),
    ],
)
def test_no_bucket_has_the_id_of_a_core_attribute_or_a_backpointer(
    digest: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Digest:
        def digest(self) -> bytes:
            return bytes.fromhex(digest) + bytes(16)

    monkeypatch.setattr(layouts, "sha256", lambda key: Digest())
    found = hash_key(b"")
    assert found == bytes.fromhex(bucket)
    assert not is_core_attribute(found)
    assert found[:8] != backpointer(5)[:8]


@given(st.binary(min_size=16, max_size=16))
def test_hash_ranges_have_every_bucket_behind_one_and_nothing_else(token: bytes) -> None:
    ranges = HashLayout().ranges_behind(token)
    assert all(first <= last for first, last in ranges)
    assert all(first > token for first, _ in ranges)
    for other in (core_attribute(0), core_attribute(1 << 20), backpointer(0), backpointer(1 << 62)):
        assert not any(first <= other <= last for first, last in ranges)
    for key in (b"a", b"b", b"c"):
        inside = any(first <= hash_key(key) <= last for first, last in ranges)
        assert inside == (hash_key(key) > token)


def test_behind_the_last_bucket_is_nothing() -> None:
    assert HashLayout().ranges_behind(b"\xff" * 16) == ()


bounds = st.binary(max_size=4)


@given(bounds, bounds, st.binary(min_size=2, max_size=2))
def test_a_fixed_range_has_the_keys_between_its_bounds(
    from_key: bytes, to_key: bytes, key: bytes
) -> None:
    ranges = FixedKeyLayout(2).ranges(from_key, to_key)
    inside = any(first <= key <= last for first, last in ranges)
    assert inside == ((not from_key or key >= from_key) and (not to_key or key <= to_key))


def test_keys_of_16_bytes_are_no_core_attributes() -> None:
    layout = FixedKeyLayout(16)
    bucket = layout.bucket(core_attribute(9))
    assert not is_core_attribute(bucket)
    values = {ATTRIBUTE_ID_LENGTH: 16, ATTRIBUTE_SEGMENT_TYPE: int(SegmentType.FIXED_KEY_TABLE)}
    assert attribute_id_bytes(values) == len(bucket)
    assert attribute_id_bytes({ATTRIBUTE_ID_LENGTH: 15}) == 15
    assert len(FixedKeyLayout(15).bucket(bytes(15))) == 15
    assert attribute_id_bytes({}) == 16


def test_names_have_successors_up_to_the_last() -> None:
    assert successor(b"\x00\xff") == b"\x01\x00"
    assert successor(b"\xff\xff") == b""
