"""Wrong bytes of a B+Tree are refused, by the offset where they lie; nothing crashes."""

import random

import pytest

from _fast.btree.tree import FOOTER_BYTES, CorruptPageError, Footer
from _fast.crc import crc32c
from support.models.stored_tree import StoredTree, key_of, stored_tree

DELTA_LEVEL = 64


def small_tree() -> StoredTree:
    """Make a tree with deltas on top of an index of three levels."""
    tree = stored_tree(leaf_bytes_max=150, index_bytes_max=300)
    tree.update([(key_of(number), number) for number in range(400)])
    for number in range(3):
        tree.update([(key_of(number * 100 + more), -more) for more in range(2)])
    assert tree.tree.footer.delta_number == 3
    return tree


def missing_pages(tree: StoredTree) -> list[tuple[int, int, int]]:
    """Return one page of each kind, from the deltas down to a leaf."""
    tree.restart()
    found = []
    while isinstance(missing := tree.tree.find(key_of(200)), tuple):
        found.append(missing)
        tree.load([missing])
    return found


def test_every_changed_byte_of_a_page_or_delta_is_refused() -> None:
    tree = small_tree()
    kinds = missing_pages(tree)
    assert [level for _, _, level in kinds] == [DELTA_LEVEL, DELTA_LEVEL, 3, 2, 1, 0]
    for offset, length, level in kinds:
        whole = tree.store.read(offset, length)
        for position in range(length):
            wrong = bytearray(whole)
            wrong[position] ^= 1 << position % 8
            with pytest.raises(CorruptPageError, match=f"at offset {offset}:") as raised:
                tree.tree.admit(bytes(wrong), offset=offset, length=length, level=level)
            assert raised.value.offset == offset
        tree.tree.admit(whole, offset=offset, length=length, level=level)


def test_a_page_in_a_wrong_place_is_refused() -> None:
    tree = small_tree()
    for offset, length, level in missing_pages(tree):
        data = tree.store.read(offset, length)
        for where, size, kind in ((offset + 1, length, level), (offset, length, level ^ 1)):
            with pytest.raises(CorruptPageError):
                tree.tree.admit(data, offset=where, length=size, level=kind)
        with pytest.raises(CorruptPageError, match=r"it has \d+ of \d+ bytes"):
            tree.tree.admit(data[:-1], offset=offset, length=length, level=level)
        for cut in range(min(length, 40)):
            with pytest.raises(CorruptPageError):
                tree.tree.admit(data[:cut], offset=offset, length=cut, level=level)


def test_every_changed_byte_of_a_footer_is_refused() -> None:
    tree = small_tree()
    offset = tree.tree.footer.offset
    whole = tree.store.read(offset, FOOTER_BYTES)
    for position in range(FOOTER_BYTES):
        wrong = bytearray(whole)
        wrong[position] ^= 1 << position % 8
        with pytest.raises(CorruptPageError, match=f"at offset {offset}:"):
            Footer.parse(wrong, offset=offset)
    for cut in range(FOOTER_BYTES):
        with pytest.raises(CorruptPageError):
            Footer.parse(whole[:cut], offset=offset)
    with pytest.raises(CorruptPageError, match="another offset"):
        Footer.parse(whole, offset=offset + 1)


def with_right_sums(delta: bytearray) -> bytes:
    """Return a changed delta with checksums that match the change."""
    delta[4:8] = crc32c(delta[24:]).to_bytes(4, "big")
    delta[:4] = crc32c(delta[4:24]).to_bytes(4, "big")
    return bytes(delta)


def test_a_delta_with_right_sums_and_wrong_contents_does_no_harm() -> None:
    tree = small_tree()
    drawn = random.Random(5)
    footer = tree.tree.footer
    expected = tree.everything()
    refused = 0
    for _ in range(2000):
        tree.restart()
        delta = bytearray(tree.store.read(footer.delta_offset, footer.delta_length))
        for _ in range(drawn.randrange(1, 4)):
            delta[drawn.randrange(24, len(delta))] = drawn.choice([0, 1, 255, drawn.randrange(256)])
        good = bytes(delta) == tree.store.read(footer.delta_offset, footer.delta_length)
        try:
            tree.tree.admit(
                with_right_sums(delta),
                offset=footer.delta_offset,
                length=footer.delta_length,
                level=DELTA_LEVEL,
            )
            found = tree.everything()
        except (CorruptPageError, AssertionError):
            # The assertions are those of the store: what is asked for is not there.
            refused += 1
        else:
            assert not good or found == expected
    assert refused > 500


def test_pages_and_deltas_are_told_apart() -> None:
    tree = small_tree()
    footer = tree.tree.footer
    delta = tree.store.read(footer.delta_offset, footer.delta_length)
    with pytest.raises(CorruptPageError, match="of another level"):
        tree.tree.admit(delta, offset=footer.delta_offset, length=len(delta), level=0)


def test_a_first_key_is_lowered_where_a_delta_needs_it() -> None:
    """An index page may get keys below its first one after the pages before it are gone."""
    tree = stored_tree(
        key_length=1, leaf_bytes_max=24 + 2 * 9, index_bytes_max=24 + 2 * 19, delta_bytes_max=900
    )
    tree.update([(bytes([number]), number) for number in range(5)])
    tree.update([(bytes([number]), None) for number in range(4)])
    tree.update([(bytes([number]), number) for number in range(2)])
    assert tree.tree.footer.delta_number == 1
    assert tree.everything() == [(bytes([number]), number) for number in (0, 1, 4)]
    tree.restart()
    assert tree.everything() == [(bytes([number]), number) for number in (0, 1, 4)]
