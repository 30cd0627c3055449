"""Our client on asyncio: ``python -m benchmarks.python_clients.ours ADDRESS WORK ...``."""

from __future__ import annotations

import asyncio
import sys

import segstore_client
from benchmarks.python_clients.works import SCOPE, Taken, Watch, Work, list_keys, run_works
from segstore_client import GroupReader, Store


async def write(store: Store, work: Work) -> Taken:
    """Write events, each as soon as there is room, and wait until all are stored."""
    data = bytes(work.event_bytes)
    async with store.writer(f"{SCOPE}/{work.stream}") as writer:
        watch = Watch()
        for _ in range(work.count):
            await writer.submit(data)
        await writer.flush()
        return watch.stop()


async def write_keys(store: Store, work: Work) -> Taken:
    """Write the same with keys."""
    data, keys = bytes(work.event_bytes), list_keys()
    async with store.writer(f"{SCOPE}/{work.stream}") as writer:
        watch = Watch()
        for number in range(work.count):
            await writer.submit(data, key=keys[number % len(keys)])
        await writer.flush()
        return watch.stop()


async def make_reader(store: Store, work: Work) -> GroupReader:
    """Return the only reader of a new group."""
    name = f"{SCOPE}/{work.group}"
    await store.create_group(name, [f"{SCOPE}/{work.stream}"])
    return store.group(name).reader("reader")


async def read(store: Store, work: Work) -> Taken:
    """Read event by event."""
    async with await make_reader(store, work) as reader:
        watch = Watch()
        left, total_bytes = work.count, 0
        async for event in reader:
            total_bytes += len(event.data)
            left -= 1
            if not left:
                break
        taken = watch.stop()
    work.check(total_bytes)
    return taken


async def read_batches(store: Store, work: Work) -> Taken:
    """Read the same in batches."""
    async with await make_reader(store, work) as reader:
        watch = Watch()
        left, total_bytes = work.count, 0
        async for events in reader.batches():
            for event in events:
                total_bytes += len(event.data)
            left -= len(events)
            if left <= 0:
                break
        taken = watch.stop()
    work.check(total_bytes)
    return taken


async def main() -> None:
    """Connect, and do the work."""
    async with segstore_client.connect(sys.argv[1]) as store:
        await run_works(
            {
                "write": lambda work: write(store, work),
                "write-keys": lambda work: write_keys(store, work),
                "read": lambda work: read(store, work),
                "read-batches": lambda work: read_batches(store, work),
            }
        )


if __name__ == "__main__":
    asyncio.run(main())
