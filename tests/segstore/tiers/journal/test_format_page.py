"""The bytes that docs/formats/journal.md shows are the bytes that are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from segstore.tiers.chunk_paths import path_of
from segstore.tiers.hdfs.storage import file_path
from segstore.tiers.journal.format import (
    FileHeader,
    Kind,
    Record,
    decode_batch_header,
    decode_file_header,
    encode_batch,
    encode_file_header,
)

FORMATS = Path(__file__).parents[4] / "docs" / "formats"
SALT = 0x0D0C0B0A


def shown_bytes() -> dict[int, bytes]:
    """Return the dumps of the page by the offset at which they begin."""
    dumps: dict[int, bytes] = {}
    for block in re.findall(
        r"```\n((?:[0-9a-f]{8}  .*\n)+)```", (FORMATS / "journal.md").read_text()
    ):
        lines = block.splitlines()
        dumps[int(lines[0][:8], 16)] = bytes.fromhex("".join(line[10:] for line in lines))
    return dumps


def test_the_example_is_what_is_written() -> None:
    dumps = shown_bytes()
    assert list(dumps) == [0, 0x1000, 0x1200]
    header = FileHeader(generation=1, salt=SALT, file_bytes=8 * 1024 * 1024)
    assert encode_file_header(header) == dumps[0].ljust(4096, b"\0")
    assert decode_file_header(dumps[0]) == header
    records = [Record(Kind.OPEN, 3, 1, 1), Record(Kind.ENTRY, 3, 1, 1, [b"he", b"llo"], 5)]
    buffers, length = encode_batch(records, generation=1, salt=SALT, batch_number=1, durable=0)
    assert b"".join(buffers) == dumps[0x1000]
    assert length == len(dumps[0x1000])
    mark, _ = encode_batch([], generation=1, salt=SALT, batch_number=2, durable=1)
    assert b"".join(mark) == dumps[0x1200]


def test_headers_pass_only_whole_and_unchanged() -> None:
    dumps = shown_bytes()
    for bit in range(8 * 36):
        header = bytearray(dumps[0])
        header[bit // 8] ^= 1 << bit % 8
        assert decode_file_header(header) is None
        batch = bytearray(dumps[0x1000])
        batch[bit // 8] ^= 1 << bit % 8
        assert decode_batch_header(batch, generation=1, salt=SALT) is None
    for length in range(36):
        assert decode_file_header(dumps[0][:length]) is None
        assert decode_batch_header(dumps[0x1000][:length], generation=1, salt=SALT) is None
    for generation, salt in [(2, SALT), (1, SALT + 1)]:
        assert decode_batch_header(dumps[0x1000], generation=generation, salt=salt) is None


def shown_paths(page: str) -> list[tuple[str, str]]:
    """Return the chunks and files in the tables of a page."""
    return re.findall(r"\| `([^`]+)` \| `([^`]+\.chunk)` \|", page)


FILES_PAGE, HDFS_PAGE = (FORMATS / "chunks.md").read_text().split("\n## Chunks in HDFS\n")


@pytest.mark.parametrize(("name", "path"), shown_paths(FILES_PAGE))
def test_the_paths_shown_are_those_that_are_used(name: str, path: str) -> None:
    assert path_of(name) == path


@pytest.mark.parametrize(("name", "path"), shown_paths(HDFS_PAGE))
def test_the_paths_shown_in_hdfs_are_those_that_are_used(name: str, path: str) -> None:
    assert file_path(name) == path


def test_the_page_shows_paths() -> None:
    assert (len(shown_paths(FILES_PAGE)), len(shown_paths(HDFS_PAGE))) == (4, 2)
