from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from segstore.tables.entries import StoredEntry
from segstore.tables.index import TableIndex, hash_key


def make_index(*, key_length: int = 0, one_bucket: bool = False) -> TableIndex:
    return TableIndex(
        key_length=key_length,
        start_offset=0,
        kept_value_bytes_max=4,
        hash_key=(lambda key: bytes(16)) if one_bucket else hash_key,
    )


def put(index: TableIndex, key: bytes, value: bytes | None) -> None:
    offset = index.length
    index.apply(StoredEntry(key, value, offset, offset, 10))


def test_the_bucket_of_a_key_is_the_head_of_its_sha256() -> None:
    assert hash_key(b"key") == hashlib.sha256(b"key").digest()[:16]


def test_the_newest_entry_counts_and_older_ones_are_dead() -> None:
    index = make_index()
    put(index, b"a", b"1")
    put(index, b"b", b"2")
    put(index, b"a", b"3")
    located = index.get(b"a")
    assert located is not None
    assert (located.version, located.value) == (20, b"3")
    assert (len(index), index.live_bytes, index.length) == (2, 20, 30)
    put(index, b"a", None)
    assert index.get(b"a") is None
    assert (len(index), index.live_bytes, index.length) == (1, 10, 40)


def test_only_small_values_stay_in_memory() -> None:
    index = make_index()
    put(index, b"small", b"1234")
    put(index, b"large", b"12345")
    small, large = index.get(b"small"), index.get(b"large")
    assert small is not None
    assert large is not None
    assert (small.value, large.value) == (b"1234", None)


def test_memory_is_given_back_with_the_keys() -> None:
    index = make_index()
    assert index.memory_bytes == 0
    put(index, b"a", b"1")
    list(index.buckets_after(b""))
    assert index.memory_bytes > 300
    put(index, b"a", None)
    assert index.memory_bytes == 0


def test_a_bucket_comes_whole_with_one_token() -> None:
    index = make_index(one_bucket=True)
    for number in range(5):
        put(index, b"%d" % number, b"")
    [(token, bucket)] = index.buckets_after(b"")
    assert token == bytes(16)
    assert sorted(key for key, _ in bucket) == [b"0", b"1", b"2", b"3", b"4"]
    assert list(index.buckets_after(token)) == []


def test_nothing_comes_after_the_last_possible_bucket() -> None:
    index = make_index()
    put(index, b"a", b"")
    assert list(index.buckets_after(b"\xff" * 16)) == []


changes = st.lists(st.tuples(st.binary(min_size=2, max_size=2), st.booleans()), max_size=60)


@given(changes, st.integers(0, 60))
def test_the_order_follows_changes_before_and_after_it_is_built(
    made: list[tuple[bytes, bool]], built_after: int
) -> None:
    hashed, fixed = make_index(), make_index(key_length=2)
    model: set[bytes] = set()
    for number, (key, present) in enumerate(made):
        if number == built_after:
            list(hashed.buckets_after(b""))
            list(fixed.range(b"", b""))
        for index in (hashed, fixed):
            put(index, key, b"" if present else None)
        (model.add if present else model.discard)(key)
    seen = [key for _, bucket in hashed.buckets_after(b"") for key, _ in bucket]
    assert seen == sorted(model, key=hash_key)
    assert [key for key, _ in fixed.range(b"", b"")] == sorted(model)
    assert [key for key, _ in fixed.range(b"\x40\x00", b"\x80\xff")] == [
        key for key in sorted(model) if b"\x40\x00" <= key <= b"\x80\xff"
    ]


@given(st.sets(st.binary(min_size=1, max_size=4), max_size=30))
def test_tokens_lead_through_all_buckets_once(model: set[bytes]) -> None:
    index = make_index()
    for key in model:
        put(index, key, b"")
    seen: list[bytes] = []
    token = b""
    while (first := next(index.buckets_after(token), None)) is not None:
        token, bucket = first
        seen += [key for key, _ in bucket]
    assert sorted(seen) == sorted(model)
