"""The example in docs/formats/attribute-index.md, read and written."""

import re
from pathlib import Path

from _fast.btree.tree import FOOTER_BYTES, Footer
from _fast.crc import crc32c
from support.models.stored_tree import records_of, stored_tree

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
    for footer, value, parts in (
        (first, 2, (0, 0x2C, 0x4E)),
        (last, -7, (0xFE, last.delta_offset)),
    ):
        tree.tree.restore(footer, end=len(data))
        assert tree.everything() == [(b"aa", 1), (b"bb", value), (b"cc", 3)]
        assert footer.update_offset == parts[0]
        pages_sum = 0
        for part in parts:
            pages_sum = crc32c(data[part : part + 4], pages_sum)
        assert footer.pages_sum == pages_sum


def test_the_documents_pages_have_these_records() -> None:
    data = example()
    for offset, end, expected in (
        (0, 0x2C, (0, [(b"aa", 1), (b"bb", 2)])),
        (0x2C, 0x4E, (0, [(b"cc", 3)])),
        (0x4E, 0x8E, (1, [(b"\0\0", 0, 0x2C, 0), (b"cc", 0x2C, 0x22, 0x2C)])),
    ):
        assert records_of(data[offset:end]) == expected
