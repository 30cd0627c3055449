"""Our side of the work that `TreeDriver.java` does:
`python -m benchmarks.peers.btree.our_tree sorted|random|get|grow <keys> <batch size>`.

Prints one line of JSON. What is timed is the calls of the tree alone, and making its batches, on
pairs of bytes and numbers that were made before.
"""

import gc
import json
import os
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence

from _fast.btree.tree import Batch, Footer, PageCache, Tree, Update

KEY_LENGTH = 16
PAIR_BYTES = KEY_LENGTH + 8
CACHE_BYTES_MAX = 1 << 30
WARM_UP_KEYS = 20_000
GROW_BATCH = 10_000
LOOKUPS = 2_000

Pairs = list[tuple[bytes, int]]


class PageMemory:
    """An index's pages in memory, from where it was truncated on."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.stored: deque[tuple[int, bytes]] = deque()

    def write(self, update: Update) -> None:
        """Append an update, and let go of what is not needed any more."""
        self.end = update.footer.end
        self.start = update.truncate_offset
        self.stored.append((self.end, update.data))
        while self.stored[0][0] <= self.start:
            self.stored.popleft()


class PageFile:
    """An index's pages in a file that is gone when this process is."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the tree)
        self.start = 0
        self.end = 0
        self.read_count = 0

    def write(self, update: Update) -> None:
        """Append an update."""
        os.pwrite(self.file.fileno(), update.data, update.offset)
        self.end = update.footer.end
        self.start = update.truncate_offset

    def read(self, offset: int, length: int) -> bytes:
        """Read bytes that were written."""
        self.read_count += 1
        return os.pread(self.file.fileno(), length, offset)


def new_tree(cache_bytes: int = CACHE_BYTES_MAX) -> Tree:
    """Make a tree with the pages that it has unless told otherwise."""
    return Tree(PageCache(cache_bytes), key_length=KEY_LENGTH)


def key(number: int) -> bytes:
    """Return the number as a key."""
    return number.to_bytes(KEY_LENGTH, "big")


def batches(numbers: Sequence[int], batch_size: int, more: int) -> list[Pairs]:
    """Yield lists of this length, of pairs of a key and its number and ``more``."""
    return [
        [(key(number), number + more) for number in numbers[start : start + batch_size]]
        for start in range(0, len(numbers), batch_size)
    ]


def update(tree: Tree, memory: PageMemory, given: Iterable[Pairs]) -> None:
    """Apply batches one after the other. Every page is in the cache."""
    for changes in given:
        prepared = tree.prepare(Batch(KEY_LENGTH, changes))
        if not isinstance(prepared, Update):
            raise TypeError(f"a batch led to {prepared}")
        memory.write(prepared)
        tree.commit(prepared)


def get(tree: Tree, sought: list[tuple[bytes, int]]) -> None:
    """Look keys up, one after the other."""
    for sought_key, number in sought:
        if tree.find(sought_key) != number:
            raise RuntimeError("a wrong value")


def measure(workload: str, keys: int, batch_size: int) -> dict[str, float]:
    """Do the work; seconds, CPU seconds, bytes retained and written."""
    drawn = random.Random(1)
    tree, memory = new_tree(), PageMemory()
    numbers = list(range(keys))
    before = 0
    given: list[Pairs] = []
    if workload == "sorted":
        given = batches(numbers, batch_size, 0)
    else:
        update(tree, memory, batches(numbers, keys, 0))
        before = memory.end
        drawn.shuffle(numbers)
        if workload == "random":
            given = batches(numbers, batch_size, 1)
    sought = [(key(number), number) for number in (drawn.choices(numbers, k=batch_size))]
    gc.collect()
    gc.freeze()
    cpu, wall = time.thread_time(), time.perf_counter()
    if workload == "get":
        get(tree, sought)
    else:
        update(tree, memory, given)
    seconds, cpu_seconds = time.perf_counter() - wall, time.thread_time() - cpu
    gc.unfreeze()
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "retained_bytes": memory.end - memory.start,
        "written_bytes": memory.end - before,
    }


def packed(first: int, count: int) -> bytes:
    """Pack changes for ascending keys whose values are their numbers."""
    return b"".join(
        number.to_bytes(KEY_LENGTH, "big") + number.to_bytes(8, "big")
        for number in range(first, first + count)
    )


def grow(keys: int) -> dict[str, float]:
    """Insert keys in their order into a tree in a file; look some up with no page cached."""
    tree, file = new_tree(CACHE_BYTES_MAX // 4), PageFile()
    wall = time.perf_counter()
    for first in range(0, keys, GROW_BATCH):
        batch = Batch(KEY_LENGTH, packed(first, min(GROW_BATCH, keys - first)))
        held: dict[int, bytes] = {}
        while isinstance(prepared := tree.prepare(batch, held), list):
            for missing in prepared:
                held[missing[0]] = load(tree, file, missing)
        if prepared is not None:
            file.write(prepared)
            tree.commit(prepared)
    seconds = time.perf_counter() - wall
    footer = tree.footer
    cold = new_tree(0)
    length = len(footer.encode())
    cold.restore(Footer.parse(file.read(footer.offset, length), offset=footer.offset), end=file.end)
    drawn = random.Random(2)
    find(cold, file, drawn.randrange(keys))  # reads the deltas, which is done once
    file.read_count = 0
    for _ in range(LOOKUPS):
        find(cold, file, drawn.randrange(keys))
    return {
        "seconds": seconds,
        "reads_per_lookup": file.read_count / LOOKUPS,
        "bytes_per_key": (file.end - file.start) / keys,
        "live_bytes_per_key": footer.live_bytes / keys,
        "levels": footer.root_level + 1,
    }


def load(tree: Tree, file: PageFile, missing: tuple[int, int, int]) -> bytes:
    """Read a page that the tree needs."""
    offset, length, level = missing
    data = file.read(offset, length)
    return tree.admit(data, offset=offset, length=length, level=level)


def find(tree: Tree, file: PageFile, number: int) -> None:
    """Look a key up whose pages have to be read."""
    held: dict[int, bytes] = {}
    while isinstance(found := tree.find(key(number), held), tuple):
        held[found[0]] = load(tree, file, found)
    if found != number:
        raise RuntimeError("a wrong value")


def main(arguments: Sequence[str]) -> None:
    """Run from the command line."""
    workload, keys, batch_size = arguments[0], int(arguments[1]), int(arguments[2])
    if workload == "grow":
        done = grow(keys)
    else:
        measure(workload, min(keys, WARM_UP_KEYS), min(batch_size, WARM_UP_KEYS))
        done = measure(workload, keys, batch_size)
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1:])
