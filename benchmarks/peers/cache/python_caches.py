"""Does a workload to a cache that Python reaches; a process of its own.

`python -m benchmarks.peers.cache.python_caches STORE --size=10240 ...` prints `ready`, waits for a
byte, and prints one JSON object: the sum, and nanoseconds for each pass and part.
"""

import gc
import json
import shutil
import sys
import tempfile
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from importlib import import_module
from typing import Protocol, TypeVar

from benchmarks.peers.cache.workload import CHECKED_EVERY, SplitMix, Work, Workload, draw

Measured = dict[str, dict[str, int]]
T = TypeVar("T")


class Store(Protocol):
    """Bytes by an address."""

    def insert(self, data: bytes | bytearray | memoryview, /) -> int:
        """Keep a copy."""
        ...

    def get_into(self, address: int, target: bytearray, /) -> int:
        """Copy out what is there; returns how much."""
        ...

    def delete(self, address: int, /) -> object:
        """Forget it."""
        ...


class DictionaryStore:
    """A dictionary of bytes, with copies both ways, as the article's HashMap."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.count = 0

    def insert(self, data: bytes | bytearray | memoryview) -> int:
        self.count += 1
        self.entries[self.count] = bytes(data)
        return self.count

    def get_into(self, address: int, target: bytearray) -> int:
        data = self.entries[address]
        memoryview(target)[: len(data)] = data
        return len(data)

    def delete(self, address: int) -> None:
        del self.entries[address]


class RocksStore:
    """RocksDB without a write-ahead log, as the article's former cache."""

    def __init__(self, directory: str) -> None:
        # Not a dependency: the types are the same whether it is installed or not.
        rocksdict = import_module("rocksdict")
        self.database = rocksdict.Rdict(directory, rocksdict.Options(raw_mode=True))
        unsafe = rocksdict.WriteOptions()
        unsafe.disable_wal = True
        self.database.set_write_options(unsafe)
        self.count = 0

    def insert(self, data: bytes | bytearray | memoryview) -> int:
        self.count += 1
        self.database[self.count.to_bytes(8, "big")] = bytes(data)
        return self.count

    def get_into(self, address: int, target: bytearray) -> int:
        data = self.database[address.to_bytes(8, "big")]
        memoryview(target)[: len(data)] = data
        return len(data)

    def delete(self, address: int) -> None:
        del self.database[address.to_bytes(8, "big")]


@contextmanager
def opened(name: str, capacity: int) -> Iterator[Store]:
    """Open an empty store."""
    if name == "ours":
        from _fast.cache.streaming_cache import StreamingCache

        yield StreamingCache(capacity)
    elif name == "dictionary":
        yield DictionaryStore()
    elif name == "rocksdb":
        directory = tempfile.mkdtemp(prefix="bench-cache-")
        try:
            store = RocksStore(directory)
            yield store
            store.database.close()
        finally:
            shutil.rmtree(directory)
    else:
        raise ValueError(f"no store {name}")


class Runner:
    """A runner that does the passes of a workload and adds up their results."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.source = bytearray(SplitMix(workload.seed).bytes(workload.size))
        self.target = bytearray(workload.size)
        self.sum = 0

    def sequential(self, store: Store, count: int) -> Measured:
        insert, get_into, delete = store.insert, store.get_into, store.delete
        source, target = self.source, self.target

        def insert_all() -> list[int]:
            return [insert(source) for _ in range(count)]

        def get_all() -> None:
            for address in addresses:
                get_into(address, target)

        def delete_all() -> None:
            for address in addresses:
                delete(address)

        inserted, addresses = measured(insert_all, count)
        got, _ = measured(get_all, count)
        for address in addresses[::CHECKED_EVERY]:
            self.check(store, address)
        deleted, _ = measured(delete_all, count)
        return {"insert": inserted, "get": got, "delete": deleted}

    def random(self, store: Store, work: Work) -> Measured:
        addresses = array("Q")
        result, _ = measured(lambda: self.run_all(store, work, addresses), len(work.deletes))
        self.sum = work.summed(self.sum)
        for number, address in enumerate(addresses):
            if number % CHECKED_EVERY == 0:
                self.check(store, address)
            store.delete(address)
        return {"random": result}

    def run_all(self, store: Store, work: Work, addresses: MutableSequence[int]) -> None:
        insert, get_into, delete = store.insert, store.get_into, store.delete
        source, target = self.source, self.target
        vary = self.workload.vary
        view = memoryview(source)
        for place, length, read in zip(work.deletes, work.lengths, work.reads, strict=True):
            if place < 0:
                addresses.append(insert(view[:length] if vary else source))
            else:
                delete(addresses[place])
                last = addresses.pop()
                if place < len(addresses):
                    addresses[place] = last
            if read >= 0:
                get_into(addresses[read], target)

    def check(self, store: Store, address: int) -> None:
        length = store.get_into(address, self.target)
        self.sum = zlib.crc32(memoryview(self.target)[:length], self.sum)


def measured(what: Callable[[], T], count: int) -> tuple[dict[str, int], T]:
    """Run it, and say how long that took on the wall's clock and on this thread's."""
    gc.collect()
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    result = what()
    cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
    return {"wall_ns": wall, "cpu_ns": cpu, "count": count}, result


def main(name: str, workload: Workload) -> None:
    """Do one run; see the module."""
    runner = Runner(workload)
    warmup = draw(workload, workload.warmup_count) if workload.random else None
    work = draw(workload, workload.count) if workload.random else None

    def one_pass(store: Store, count: int, operations: Work | None) -> Measured:
        if operations is None:
            return runner.sequential(store, count)
        return runner.random(store, operations)

    with opened(name, workload.warmup_capacity) as store:
        for _ in range(workload.warmup_passes):
            one_pass(store, workload.warmup_count, warmup)
    print("ready", flush=True)
    sys.stdin.read(1)
    runner.sum = 0
    with opened(name, workload.capacity) as store:
        passes = [one_pass(store, workload.count, work) for _ in range(workload.passes)]
    print(json.dumps({"digest": runner.sum, "passes": passes}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Workload.parse(sys.argv[2:]))
