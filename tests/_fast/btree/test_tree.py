"""The bytes that the B+Tree writes and reads: pages by figure, length on tier 2, reads of a lookup.

The figures and tables are those of the article on segment attributes, at small size.
"""

import random

import pytest

from _fast.btree.page import PAGE_HEADER_BYTES
from _fast.btree.tree import FOOTER_BYTES, PAGE_BYTES_MAX, Footer
from support.models.stored_tree import (
    StoredTree,
    key_of,
    parts_of,
    records_of,
    stored_tree,
)

K = {number: key_of(number + 10) for number in range(-1, 4)}
"""The five keys of Figure 4; the numbers say how they ascend."""


def name_of(level: int, keys: list[bytes]) -> str:
    """Return the node of Figure 4 that a page is a version of."""
    if level == 2:
        return "1"
    if level == 1:
        return "3" if keys[-1] > K[1] else "2"
    return next(
        name for number, name in ((3, "7"), (2, "6"), (1, "5"), (0, "4")) if K[number] in keys
    )


def figure_four(*, compaction: bool) -> tuple[list[str], int]:
    """Return the file's pages, and the pages at which it may be truncated."""
    tree = stored_tree(
        leaf_bytes_max=PAGE_HEADER_BYTES + 2 * 24,
        index_bytes_max=PAGE_HEADER_BYTES + 3 * 34,
        compaction=compaction,
        retained_ratio=0,
        delta_bytes_max=0,
    )
    layout, offsets = [], []
    for changes in (
        {K[1]: 1, K[2]: 2},  # a single node, 6
        {K[3]: 3},  # 6 splits into 6 and 7
        {K[0]: 0},  # 6 splits into 5 and 6
        {K[-1]: 0},  # 5 splits into 4 and 5, and 3 into 2 and 3
        {K[2]: 7},  # 6 is updated
    ):
        update = tree.update(changes, truncates=False)
        assert update is not None
        for offset, page in parts_of(update)[:-1]:
            level, records = records_of(page)
            layout.append(name_of(level, [record[0] for record in records]))
            offsets.append(offset)
    return layout, offsets.index(update.truncate_offset)


# The article lists new siblings from right to left in one step and from left to right in another;
# here it is always from left to right.


def test_figure_four_without_compaction() -> None:
    layout, truncation = figure_four(compaction=False)
    assert layout == [*"6", *"673", *"563", *"45231", *"631"]
    assert truncation == 2


def test_figure_four_with_progressive_compaction() -> None:
    layout, truncation = figure_four(compaction=True)
    assert layout == [*"6", *"673", *"563", *"745231", *"631"]
    assert truncation == 7


def retained_bytes(*, order: list[int], load: bool, batch: int, **options: object) -> StoredTree:
    tree = stored_tree(**options)
    if load:
        tree.update([(key_of(number), number) for number in sorted(order)])
    for start in range(0, len(order), batch):
        tree.update([(key_of(number), number + 1) for number in order[start : start + batch]])
    return tree


PAGES = {"leaf_bytes_max": 4096, "index_bytes_max": 4096, "delta_bytes_max": 0}
COUNT = 20_000


@pytest.mark.parametrize(("batch", "factor"), [(10, 5), (100, 1.3)])
def test_table_one_compaction_bounds_an_index_of_sorted_insertions(
    batch: int, factor: float
) -> None:
    order = list(range(COUNT))
    with_it, without = (
        retained_bytes(
            order=order, load=False, batch=batch, retained_ratio=0, compaction=compaction, **PAGES
        )
        for compaction in (True, False)
    )
    written = without.store.end
    kept = with_it.store.end - with_it.store.start
    assert written > factor * kept
    assert kept < 6 * with_it.tree.footer.live_bytes


@pytest.mark.parametrize("batch", [10, 100, 1000])
def test_table_two_compaction_bounds_an_index_of_random_updates(batch: int) -> None:
    order = list(range(COUNT))
    random.Random(batch).shuffle(order)
    with_it, without = (
        retained_bytes(
            order=order, load=True, batch=batch, retained_ratio=0, compaction=compaction, **PAGES
        )
        for compaction in (True, False)
    )
    kept = with_it.store.end - with_it.store.start
    assert kept < 6 * with_it.tree.footer.live_bytes
    assert without.store.end > (2 if batch == 1000 else 5) * kept


@pytest.mark.parametrize("batch", [10, 100, 1000])
@pytest.mark.parametrize("load", [False, True])
def test_deltas_keep_the_ratio_that_was_asked_for(batch: int, load: bool) -> None:
    order = list(range(COUNT))
    if load:
        random.Random(batch).shuffle(order)
    tree = retained_bytes(order=order, load=load, batch=batch, retained_ratio=2.5)
    footer = tree.tree.footer
    assert tree.store.end - tree.store.start < 3.5 * footer.live_bytes
    assert dict(tree.everything()) == {key_of(number): number + 1 for number in order}


def test_a_page_of_32_kib_has_about_a_thousand_children() -> None:
    assert PAGE_BYTES_MAX == 32 * 1024
    two_records = PAGE_HEADER_BYTES + 2 * 24
    tree = stored_tree(leaf_bytes_max=two_records)
    children = (PAGE_BYTES_MAX - PAGE_HEADER_BYTES) // 34
    assert 950 < children < 1050
    tree.update([(key_of(number), number) for number in range(2 * children)])
    assert (tree.tree.footer.root_level, tree.tree.footer.leaf_count) == (1, children)
    tree.update([(key_of(2 * children), 0)])
    tree.update([(key_of(2 * children + 1), 0), (key_of(2 * children + 2), 0)])
    tree.restart()
    assert len(tree.everything()) == 2 * children + 3


def test_a_billion_entries_need_four_reads_at_most() -> None:
    entries = (PAGE_BYTES_MAX - PAGE_HEADER_BYTES) // 24
    children = (PAGE_BYTES_MAX - PAGE_HEADER_BYTES) // 34
    assert entries * children**2 > 1_000_000_000
    # The same with the small leaves that a tree has unless told otherwise, half of them empty.
    assert 1000 // 24 // 2 * children**3 > 1_000_000_000


@pytest.mark.parametrize(("leaf", "index", "reads"), [(0, 32_768, 2), (0, 600, 4), (600, 300, 5)])
def test_a_cold_lookup_reads_one_page_of_each_level(leaf: int, index: int, reads: int) -> None:
    tree = stored_tree(leaf_bytes_max=leaf, index_bytes_max=index, cache_bytes=0)
    tree.update([(key_of(number), number) for number in range(COUNT)])
    assert tree.tree.footer.root_level + 1 == reads
    tree.store.read_count = 0
    assert tree.find(key_of(COUNT // 3)) == COUNT // 3
    assert tree.store.read_count == reads


def test_a_warm_lookup_reads_one_page_at_most() -> None:
    index_fits = 40_000
    tree = stored_tree(cache_bytes=index_fits)
    tree.update([(key_of(number), number) for number in range(COUNT)])
    tree.find(key_of(0))
    for number in range(0, COUNT, 500):
        tree.store.read_count = 0
        assert tree.find(key_of(number)) == number
        assert tree.store.read_count <= 1


def lowest(tree: StoredTree, offset: int, length: int, level: int) -> int:
    """Return the lowest offset in a subtree; check what every index page says about it."""
    found, records = records_of(tree.store.read(offset, length))
    assert found == level
    if level == 0:
        return offset
    least = offset
    for _, child, child_length, min_offset in records:
        assert lowest(tree, child, child_length, level - 1) == min_offset
        least = min(least, min_offset)
    return least


def test_every_index_page_knows_the_lowest_offset_below_each_child() -> None:
    tree = stored_tree(leaf_bytes_max=200, index_bytes_max=200, delta_bytes_max=0)
    drawn = random.Random(3)
    for _ in range(100):
        tree.update([(key_of(drawn.randrange(500)), drawn.randrange(99)) for _ in range(5)])
        footer: Footer = tree.tree.footer
        root = (footer.root_offset, footer.root_length, footer.root_level)
        assert lowest(tree, *root) == footer.min_offset
    assert footer.root_level >= 2
    parsed = Footer.parse(tree.store.read(footer.offset, FOOTER_BYTES), offset=footer.offset)
    assert parsed.min_offset == footer.min_offset
