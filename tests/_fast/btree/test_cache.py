"""The memory of the page cache: bounded, given back, and never mixed up."""

import gc
import random
import struct

import pytest

from _fast.btree.tree import PageCache, Tree
from _fast.crc import crc32c
from support.models.stored_tree import StoredTree, key_of, stored_tree

REGION_BYTES = 2 << 20


def filled(tree: StoredTree, count: int, value: int, *, seed: int = 1) -> dict[bytes, int]:
    """Fill the tree with random keys and values, in batches, and return them."""
    drawn = random.Random(seed)
    entries = {key_of(drawn.randrange(1 << 62), tree.tree.key_length): value for _ in range(count)}
    items = list(entries.items())
    for start in range(0, len(items), 500):
        tree.update(items[start : start + 500])
    return entries


def test_a_tree_and_its_cache_end_in_one_collection() -> None:
    tree = stored_tree()
    tree.update({key_of(1): 1})
    ring: list[object] = [tree.tree, tree.tree.cache]
    ring.append(ring)
    del tree, ring
    gc.collect()


@pytest.mark.parametrize(
    "leaf_bytes_max", [80, 96, 500, 1000, 1024, 1100, 2048, 5000, 20000, 32768]
)
def test_pages_of_any_length_are_kept_as_they_were(leaf_bytes_max: int) -> None:
    tree = stored_tree(leaf_bytes_max=leaf_bytes_max, index_bytes_max=max(200, leaf_bytes_max // 2))
    entries = filled(tree, 5000, 1)
    for key in list(entries)[::3]:
        entries[key] = 2
    tree.update({key: value for key, value in entries.items() if value == 2})
    read_count = tree.store.read_count
    assert tree.everything() == sorted(entries.items())
    assert tree.store.read_count == read_count, "a page was not in the cache"


@pytest.mark.proof
def test_memory_stays_in_proportion_to_the_pages_whatever_their_length() -> None:
    cache = PageCache(4 << 20)
    for leaf_bytes_max in (1024, 300, 4000, 700, 20000, 128):
        tree = stored_tree(cache=cache, leaf_bytes_max=leaf_bytes_max, delta_bytes_max=0)
        filled(tree, 60_000, 1)
        assert cache.used_bytes <= cache.bytes_max
        assert cache.memory_bytes <= cache.bytes_max * 9 // 8 + 3 * REGION_BYTES


@pytest.mark.proof
def test_memory_is_given_back_when_a_tree_goes() -> None:
    cache = PageCache(64 << 20)
    small = stored_tree(cache=cache)
    entries = filled(small, 1000, 7)
    large = stored_tree(cache=cache)
    filled(large, 300_000, 1)
    assert cache.memory_bytes > 4 * REGION_BYTES
    del large
    gc.collect()
    assert cache.memory_bytes <= 3 * REGION_BYTES
    read_count = small.store.read_count
    assert small.everything() == sorted(entries.items())
    assert small.store.read_count == read_count


def test_trees_that_share_a_cache_do_not_share_pages() -> None:
    cache = PageCache(1 << 20)
    trees = [stored_tree(cache=cache) for _ in range(5)]
    entries = [filled(tree, 3000, number, seed=number) for number, tree in enumerate(trees)]
    for tree, expected in zip(trees, entries, strict=True):
        assert tree.everything() == sorted(expected.items())


def leaf_of(count: int, *, offset: int) -> bytes:
    """Return a leaf with so many records; their keys have 8 bytes."""
    records = b"".join(struct.pack(">Qq", number, number) for number in range(count))
    head = struct.pack(">IBBHHHQ", crc32c(records), 1, 0, count, 8, 0, offset)
    return struct.pack(">I", crc32c(head)) + head + records


def test_a_page_that_is_longer_than_any_slot_is_not_cached() -> None:
    cache = PageCache(1 << 26)
    tree = Tree(cache, key_length=8)
    page = leaf_of(5000, offset=4096)
    assert len(page) > 65535
    assert tree.admit(page, offset=4096, length=len(page), level=0) == page
    assert cache.page_count == 0
    page = leaf_of(2000, offset=4096)
    assert tree.admit(page, offset=4096, length=len(page), level=0) == page
    assert cache.page_count == 1
