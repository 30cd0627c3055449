"""The example in docs/formats/attribute-index.md, read and written."""

import re
from pathlib import Path

import pytest

from _fast.btree.page import pack_page, sum_pages, unpack_page
from _fast.btree.tree import FOOTER_BYTES, Footer
from segstore.testing.stored_tree import stored_tree

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/formats/attribute-index.md"


def example() -> bytes:
    lines = re.findall(r"^[0-9a-f]{4}  ([0-9a-f ]+)$", DOCUMENT.read_text(), re.MULTILINE)
    return bytes.fromhex(" ".join(lines))


def test_the_documents_example_is_what_a_tree_writes() -> None:
    tree = stored_tree(key_length=2, leaf_bytes_max=24 + 2 * 10)
    tree.update({b"aa": 1, b"bb": 2, b"cc": 3}, truncates=False)
    tree.update({b"bb": -7}, truncates=False)
    assert bytes(tree.store.data) == example()


def test_the_documents_example_is_read() -> None:
    data = example()
    first = Footer.parse(data[0x8E : 0x8E + FOOTER_BYTES], offset=0x8E)
    last = Footer.parse(data[-FOOTER_BYTES:], offset=len(data) - FOOTER_BYTES)
    assert (first.root_offset, first.delta_number) == (0x4E, 0)
    assert (last.root_offset, last.delta_number) == (0x4E, 1)
    assert last.delta_offset + last.delta_length == last.offset
    tree = stored_tree(key_length=2)
    tree.store.data += data
    for footer, value in ((first, 2), (last, -7)):
        tree.tree.restore(footer, end=len(data))
        assert tree.everything() == [(b"aa", 1), (b"bb", value), (b"cc", 3)]
        body = data[footer.update_offset : footer.offset]
        assert sum_pages(body, offset=footer.update_offset, key_length=2) == (
            len(body),
            footer.pages_sum,
        )


def test_pages_are_unpacked_and_packed() -> None:
    data = example()
    for offset, end, expected in (
        (0, 0x2C, (0, [(b"aa", 1), (b"bb", 2)])),
        (0x2C, 0x4E, (0, [(b"cc", 3)])),
        (0x4E, 0x8E, (1, [(b"\0\0", 0, 0x2C, 0), (b"cc", 0x2C, 0x22, 0x2C)])),
    ):
        level, records = unpack_page(data[offset:end], offset=offset, key_length=2)
        assert (level, records) == expected
        assert pack_page(level, records, offset=offset, key_length=2) == data[offset:end]


def test_keys_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 256 bytes"):
        unpack_page(b"", offset=0, key_length=257)
    with pytest.raises(ValueError, match="a key of 3 bytes"):
        pack_page(0, [(b"abc", 1)], offset=0, key_length=2)
