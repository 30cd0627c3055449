"""A B+Tree with its storage in memory, for tests, and the loop that every caller of a tree runs.

Owns: bytes that only grow at their end, and are really gone before the truncation offset.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from _fast.btree.page import PAGE_HEADER_BYTES
from _fast.btree.tree import FOOTER_BYTES, Batch, Footer, PageCache, Tree, Update

Missing = tuple[int, int, int]
DELTA_LEVEL = 64

Changes = bytes | Mapping[bytes, int | None] | Iterable[tuple[bytes, int | None]]


class PageStore:
    """Bytes that grow at the end and are dropped from the beginning."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.data = bytearray()
        self.read_count = 0
        self.read_bytes = 0

    @property
    def end(self) -> int:
        """Return where the next byte goes."""
        return self.start + len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        """Return stored bytes."""
        assert self.start <= offset, f"{offset} is truncated: the store begins at {self.start}"
        assert offset + length <= self.end, f"{offset + length} is behind {self.end}"
        self.read_count += 1
        self.read_bytes += length
        return bytes(self.data[offset - self.start : offset - self.start + length])

    def append(self, offset: int, data: bytes) -> None:
        """Write at the end."""
        assert offset == self.end
        self.data += data

    def truncate(self, offset: int) -> None:
        """Forget all before the offset."""
        assert self.start <= offset <= self.end
        del self.data[: offset - self.start]
        self.start = offset


class StoredTree:
    """A tree with its storage."""

    def __init__(self, make: Callable[[], Tree], store: PageStore) -> None:
        self.make = make
        self.store = store
        self.tree = make()
        self.tree.restore(None, end=store.end)
        self.held: dict[int, bytes] = {}

    def load(self, missing: Iterable[Missing]) -> None:
        """Read what is missing, and hold it."""
        for offset, length, level in missing:
            assert offset not in self.held, "asked for twice"
            data = self.store.read(offset, length)
            page = self.tree.admit(data, offset=offset, length=length, level=level)
            assert page == data
            self.held[offset] = page

    def find(self, key: bytes) -> int | None:
        """Return a key's value."""
        self.held = {}
        while isinstance(found := self.tree.find(key, self.held), tuple):
            self.load([found])
        return found

    def find_many(self, keys: list[bytes]) -> list[int | None]:
        """Return the values of keys, in their order."""
        self.held = {}
        while True:
            values, missing = self.tree.find_many(keys, self.held)
            if not missing:
                return values
            self.load(missing)

    def scan(self, first: bytes, last: bytes, limit: int = 1000) -> list[tuple[bytes, int]]:
        """Return the entries between two keys, both included."""
        found = []
        resume: bytes | None = first
        while resume is not None:
            self.held = {}
            while True:
                entries, following, missing = self.tree.scan(
                    resume, last, limit=limit, held=self.held
                )
                if not missing:
                    break
                self.load(missing)
            assert following is None or following > resume or not limit
            assert len(entries) <= limit
            found += entries
            resume = following
        return found

    def everything(self) -> list[tuple[bytes, int]]:
        """Return all entries, in their order."""
        length = self.tree.key_length
        return self.scan(bytes(length), b"\xff" * length)

    def prepare(self, changes: Changes) -> Update | None:
        """Return the update that these changes lead to."""
        batch = Batch(self.tree.key_length, changes)
        self.held = {}
        while isinstance(prepared := self.tree.prepare(batch, self.held), list):
            assert prepared
            self.load(prepared)
        return prepared

    def update(self, changes: Changes, *, truncates: bool = True) -> Update | None:
        """Write and commit these changes, and truncate as far as that allows."""
        update = self.prepare(changes)
        if update is not None:
            self.write(update)
            if truncates:
                self.store.truncate(update.truncate_offset)
        return update

    def write(self, update: Update) -> None:
        """Write and commit an update."""
        assert update.length == len(update.data)
        self.store.append(update.offset, update.data)
        self.tree.commit(update)
        assert self.tree.end == self.store.end

    def restart(self) -> None:
        """Return a new tree with what the last footer says."""
        footer = self.tree.footer
        if footer.update_number:
            footer = Footer.parse(
                self.store.read(footer.offset, FOOTER_BYTES), offset=footer.offset
            )
        self.tree = self.make()
        self.tree.restore(footer if footer.update_number else None, end=self.store.end)


def stored_tree(
    *,
    cache: PageCache | None = None,
    cache_bytes: int = 1 << 26,
    start: int = 0,
    key_length: int = 16,
    **options: Any,
) -> StoredTree:
    """Return an empty tree, whose storage begins at ``start``; options are those of ``Tree``."""
    pages = cache or PageCache(cache_bytes)
    return StoredTree(
        lambda: Tree(pages, key_length=key_length, **options),
        PageStore(start),
    )


def parts_of(update: Update) -> list[tuple[int, bytes]]:
    """Return the pages of an update, its delta if it has one, and its footer, each with its
    offset."""
    key_length = update.footer.key_length
    position, end = 0, update.footer.offset - update.offset
    parts = []
    while position < end:
        level, count = update.data[position + 9], update.data[position + 10 : position + 12]
        length = PAGE_HEADER_BYTES + int.from_bytes(count, "big") * (
            key_length + (18 if level else 8)
        )
        if level == DELTA_LEVEL:
            high = update.data[position + 14 : position + 16]
            length = int.from_bytes(high + count, "big")
        parts.append((update.offset + position, update.data[position : position + length]))
        position += length
    assert position == end
    return [*parts, (update.footer.offset, update.data[end:])]


def records_of(page: bytes) -> tuple[int, list[Any]]:
    """Return the level of a page and its records.

    A leaf's record is ``(key, value)``; that of an index page, whose level is not 0, is
    ``(key, offset, length, min_offset)``.
    """
    level, count, key_length = struct.unpack_from(">BHH", page, 9)
    layout = struct.Struct(f">{key_length}s{'QHQ' if level else 'q'}")
    return level, list(layout.iter_unpack(page[PAGE_HEADER_BYTES:]))[:count]


def key_of(number: int, length: int = 16) -> bytes:
    """Return the number as a key."""
    return number.to_bytes(length, "big")
