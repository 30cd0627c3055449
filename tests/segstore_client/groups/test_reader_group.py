"""Reader groups of real streams, by the client: readers that share, come, go and vanish."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing, nullcontext
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio
from foreign_servers.deadlines import scale

import segstore_client
from pravega_wire.commands import ConditionalAppend, Reply, Request
from pravega_wire.reader_groups import membership
from pravega_wire.reader_groups.changes import (
    CheckpointBegun,
    CheckpointReached,
    CheckpointsCleared,
    ReaderAdded,
    ReaderRemoved,
    SegmentReleased,
    UpdateBegun,
    decode_revision,
)
from pravega_wire.reader_groups.settings import RETENTION_AUTOMATIC
from pravega_wire.requests.store_connection import StoreConnection
from segstore_client import (
    AlreadyExistsError,
    ConflictError,
    GroupReader,
    NotFoundError,
    Position,
    ReaderGroup,
    RemovedFromGroupError,
    Store,
)
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Scaling
from segstore_client.groups.group_log import GroupLog
from segstore_client.states.revision_log import RevisionLog
from segstore_client.steps import reader_steps, state_steps
from support.event_loops import ON_THE_USUAL_LOOP, RunClient
from support.served_stream import ServedStream, served_stream

pytestmark = ON_THE_USUAL_LOOP

SECONDS = scale(60.0)
KEYS = 8


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers decide more often than once in a second."""
    monkeypatch.setattr(membership, "UNIT_SECONDS", 0.05)


class Numbers:
    """Events ``KEY-NUMBER``, written in order, and what readers got of them."""

    def __init__(self) -> None:
        self.written = 0
        self.seen: dict[str, list[str]] = {}
        self._news = anyio.Event()

    async def write(self, store: Store, count: int) -> None:
        async with store.writer("s/t") as writer:
            for number in range(self.written, self.written + count):
                key = f"k{number % KEYS}"
                await writer.write(f"{key}-{number}".encode(), key=key)
        self.written += count

    def take(self, reader: str, data: bytes) -> None:
        self.seen.setdefault(reader, []).append(data.decode())
        news, self._news = self._news, anyio.Event()
        news.set()

    async def wait_until(self, count: int) -> None:
        """Wait until so many events were read."""
        with anyio.fail_after(SECONDS):
            while self.count < count:
                await self._news.wait()

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def check(self) -> None:
        """See that each event was read once."""
        found = [each for events in self.seen.values() for each in events]
        assert sorted(found, key=number_of) == [f"k{n % KEYS}-{n}" for n in range(self.written)]


def number_of(event: str) -> int:
    return int(event.partition("-")[2])


async def read_all(group: ReaderGroup, name: str, numbers: Numbers) -> None:
    """Read until the group is at the end of everything."""
    async with group.reader(name) as reader:
        async for event in reader:
            numbers.take(name, event.data)


async def read_on(reader: GroupReader) -> None:
    """Read until the reader fails, however long no event comes."""
    while True:
        with anyio.move_on_after(0.1):
            await anext(reader)


async def fail_at(reader: GroupReader, *events: bytes) -> None:
    """Leave the reader's block by an error, after these events."""
    async with reader:
        given = aiter(reader)
        for event in events:
            assert (await anext(given)).data == event
        raise ZeroDivisionError


async def make_stream(store: Store, segments: int, **options: object) -> ReaderGroup:
    await store.create_scope("s")
    await store.create_stream("s/t", segments=segments)
    await store.create_group("s/g", ["s/t"], refresh_seconds=0.1, **options)  # type: ignore[arg-type]
    return store.group("s/g")


async def share(address: str, stream: ServedStream, token: trio.lowlevel.TrioToken) -> None:
    def call(function: object, *arguments: object) -> None:
        trio.from_thread.run(function, *arguments, trio_token=token)  # type: ignore[call-overload]

    numbers = Numbers()
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 2)
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in ("a", "b"):
                    tasks.start_soon(read_all, group, name, numbers)
                await numbers.write(store, 100)
                await numbers.wait_until(100)
                tasks.start_soon(read_all, group, "c", numbers)
                quarters = (0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)
                await anyio.to_thread.run_sync(call, stream.scale, *quarters)
                # Four segments are enough for three readers.
                while len(numbers.seen) < 3:
                    await numbers.write(store, 10)
                    await anyio.sleep(0.05)
                await numbers.wait_until(numbers.written)
                halves = (0.0, 0.5), (0.5, 1.0)
                await anyio.to_thread.run_sync(call, stream.scale, *halves)
                await numbers.write(store, 100)
                await store.seal_stream("s/t")
        assert await group.readers() == []
    numbers.check()
    for events in numbers.seen.values():
        for key in range(KEYS):
            mine = [number_of(each) for each in events if each.startswith(f"k{key}-")]
            assert mine == sorted(mine)


async def test_readers_share_streams_through_scalings(
    tmp_path: Path, run_client: RunClient
) -> None:
    token = trio.lowlevel.current_trio_token()
    async with served_stream(tmp_path) as stream:
        await run_client(share, stream.address, stream, token)


async def come_at_once(address: str) -> None:
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 6, checkpoint_seconds=None)
        owned: dict[str, set[str]] = {}
        numbers = Numbers()
        await numbers.write(store, 200)

        async def read(name: str) -> None:
            async with group.reader(name) as reader:
                async for event in reader:
                    numbers.take(name, event.data)
                    owned[name] = set(reader.positions)

        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in ("a", "b", "c"):
                    tasks.start_soon(read, name)
                while sorted(map(len, owned.values())) != [2, 2, 2]:
                    await numbers.write(store, 20)
                await numbers.wait_until(numbers.written)
                tasks.cancel_scope.cancel()
        assert len(set().union(*owned.values())) == 6
    numbers.check()


async def test_readers_that_come_at_once_share_the_segments(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(come_at_once, stream.address)


async def vanish(address: str) -> None:
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 2, checkpoint_seconds=None)
        numbers = Numbers()
        await numbers.write(store, 20)
        with anyio.fail_after(SECONDS):
            gone = await group.reader("gone").__aenter__()
            for _ in range(20):
                numbers.take("gone", (await anext(gone)).data)
            with pytest.raises(ConflictError, match="has a reader gone already"):
                await group.reader("gone").__aenter__()
            async with anyio.create_task_group() as tasks:
                taken: dict[str, Mapping[str, int]] = {}

                async def take_checkpoint() -> None:
                    taken.update(await group.checkpoint("x"))

                tasks.start_soon(take_checkpoint)
                while not taken:
                    # Its events are done when it asks for the next one; there is none.
                    with anyio.move_on_after(0.2):
                        await anext(gone)
            assert sum(map(len, taken.values())) == 2
            done = sum(offset for cut in taken.values() for offset in cut.values())
            assert done > 0
            # What it reads behind the checkpoint is read again.
            await numbers.write(store, 4)
            again = [(await anext(gone)).data for _ in range(4)]
            await gone.drop()
            assert await group.readers() == ["gone"]
            assert await group.unread_bytes() > 0
            await group.remove_reader("gone")
            with pytest.raises(NotFoundError, match="reader group s/g has no reader gone"):
                await group.remove_reader("gone")
            async with group.reader("next") as reader:
                for _ in again:
                    numbers.take("next", (await anext(reader)).data)
            numbers.check()
            assert await group.unread_bytes() == 0


async def test_a_reader_that_vanished_is_replaced(tmp_path: Path, run_client: RunClient) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(vanish, stream.address)


async def leave(address: str) -> None:
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 1)
        numbers = Numbers()
        await numbers.write(store, 4)
        with anyio.fail_after(SECONDS):
            async with group.reader("a") as reader:
                assert (await anext(reader)).data == b"k0-0"
            with pytest.raises(ZeroDivisionError):
                await fail_at(group.reader("a"), b"k1-1", b"k2-2")
            async with group.reader("a") as reader:
                event = await anext(reader)
                assert (event.data, event.stream) == (b"k2-2", "s/t")
                assert (await anext(reader)).data == b"k3-3"
                for _ in range(20):
                    # A wait that is cancelled, at any moment, loses nothing.
                    with anyio.move_on_after(0.02):
                        await anext(reader)
                await numbers.write(store, 1)
                assert (await anext(reader)).data == b"k4-4"


async def test_the_event_of_a_block_that_failed_is_read_again(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(leave, stream.address)


async def read_batches(reader: GroupReader, count: int, *, ends_well: bool) -> list[bytes]:
    """Read so many events in batches, and leave the reader's block then."""
    found: list[bytes] = []
    with pytest.raises(ZeroDivisionError) if not ends_well else nullcontext():
        async with reader:
            async for batch in reader.batches():
                found += [event.data for event in batch]
                if len(found) == count:
                    break
            if not ends_well:
                raise ZeroDivisionError
    return found


async def take_batches(address: str) -> None:
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 1)
        numbers = Numbers()
        await numbers.write(store, 6)
        written = [f"k{number}-{number}".encode() for number in range(6)]
        with anyio.fail_after(SECONDS):
            # All that are there come in one batch, which counts as a whole.
            assert await read_batches(group.reader("a"), 6, ends_well=False) == written
            async with group.reader("a") as reader:
                assert (await anext(reader)).data == written[0]
                [start] = reader.positions.values()
                assert start == 0
                # By asking for the batch, the program says that it is done with the event.
                batch = await anext(reader.batches())
                assert [event.data for event in batch] == written[1:]
                assert list(reader.positions.values()) == [batch[0].offset]
                await numbers.write(store, 1)
                assert (await anext(reader)).data == b"k6-6"
                assert list(reader.positions.values()) == [batch[-1].end_offset]
                with anyio.move_on_after(0.1):
                    await anext(reader.batches())
            await numbers.write(store, 2)
            assert await read_batches(group.reader("a"), 2, ends_well=True) == [b"k7-7", b"k0-8"]
            await store.seal_stream("s/t")
            async with group.reader("a") as reader:
                assert [batch async for batch in reader.batches()] == []


async def test_a_batch_is_done_as_a_whole(tmp_path: Path, run_client: RunClient) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(take_batches, stream.address)


async def fail_amid_piece(address: str) -> None:
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 1, checkpoint_seconds=None)
        numbers = Numbers()
        await numbers.write(store, 5)
        with anyio.fail_after(SECONDS):
            # They come in one piece, of which nothing was told to the group yet.
            with pytest.raises(ZeroDivisionError):
                await fail_at(group.reader("a"), b"k0-0", b"k1-1", b"k2-2")
            with pytest.raises(ZeroDivisionError):
                await fail_at(group.reader("a"), b"k2-2", b"k3-3")
            wanted = [b"k3-3", b"k4-4"]
            async with group.reader("a") as reader:
                async for event in reader:
                    assert event.data == wanted.pop(0)
                    assert list(reader.positions.values()) == [event.offset]
                    if not wanted:
                        break


async def test_a_reader_that_failed_amid_a_piece_was_done_with_the_events_before(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(fail_amid_piece, stream.address)


async def remove_amid_piece(address: str) -> None:
    now = 0.0
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 1)
        numbers = Numbers()
        await numbers.write(store, 5)
        with ControllerClient(address) as controller, anyio.fail_after(SECONDS):
            reader = GroupReader(controller, "s", "g", "a", patience=10.0, clock=lambda: now)
            async with reader:
                while not numbers.count:
                    # What this clock says does not change while it waits.
                    now += 1.0
                    with anyio.move_on_after(0.1):
                        numbers.take("a", (await anext(reader)).data)
                await group.remove_reader("a")
                assert (await anext(reader)).data == b"k1-1"
                now += 100.0
                for events in (reader, aiter(reader), reader.batches()):
                    with pytest.raises(RemovedFromGroupError):
                        await anext(events)


async def test_a_reader_that_was_removed_amid_a_piece_gives_nothing_more(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(remove_amid_piece, stream.address)


async def continue_at(address: str) -> None:
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 1, checkpoint_seconds=0.1)
        numbers = Numbers()
        await numbers.write(store, 4)
        told: list[tuple[str, Mapping[str, int]]] = []

        async def note(name: str, positions: Mapping[str, int]) -> None:
            told.append((name, positions))

        cuts: dict[str, Mapping[int, int]] = {}

        async def take_checkpoint() -> None:
            cuts.update(await group.checkpoint("mine"))

        with anyio.fail_after(SECONDS):
            async with group.reader("a", on_checkpoint=note) as reader:
                first, second = await anext(reader), await anext(reader)
                assert second.data == b"k1-1"
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(take_checkpoint)
                    while not cuts:
                        with anyio.move_on_after(0.1):
                            await anext(reader)
                # There is an event behind the checkpoint, wherever that is.
                await numbers.write(store, 1)
                # Some are of the group itself: each tenth of a second.
                assert dict(told)["mine"]
                await group.reset(cuts)
                with pytest.raises(RemovedFromGroupError, match="the group was reset"):
                    await read_on(reader)
            async with group.reader("a") as reader:
                event = await anext(reader)
                assert event.offset == next(iter(cuts["s/t"].values()))
                assert event.offset > first.offset
            await group.reset(Position.HEAD)
            async with group.reader("a") as reader:
                assert (await anext(reader)).data == b"k0-0"
            await group.reset(Position.TAIL)
            assert await group.unread_bytes() == 0
            await numbers.write(store, 1)
            async with group.reader("a") as reader:
                assert (await anext(reader)).data == b"k5-5"


async def test_a_group_continues_at_the_positions_of_a_checkpoint(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(continue_at, stream.address)


async def reset_to_no_tail(address: str) -> None:
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 1)
        await store.seal_stream("s/t")
        with pytest.raises(ConflictError, match="stream s/t is sealed, so it has no tail"):
            await group.reset(Position.TAIL)


async def test_a_group_is_not_reset_to_the_tail_of_a_sealed_stream(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(reset_to_no_tail, stream.address)


async def bound(address: str) -> None:
    async with segstore_client.connect(address) as store:
        await make_stream(store, 1)
        numbers = Numbers()
        await numbers.write(store, 4)
        async with store.reader("s/t", end=Position.TAIL) as whole:
            offsets = [event.offset async for event in whole]
        cuts = {"s/t": {0: offsets[1]}}, {"s/t": {0: offsets[3]}}
        await store.create_group("s/part", ["s/t"], starts=cuts[0], ends=cuts[1])
        with anyio.fail_after(SECONDS):
            async with store.group("s/part").reader("a") as reader:
                assert [event.data async for event in reader] == [b"k1-1", b"k2-2"]
        await store.create_group("s/part", ["s/t"], exist_ok=True)
        with pytest.raises(AlreadyExistsError, match="reader group s/part exists already"):
            await store.create_group("s/part", ["s/t"])
        assert sorted(await store.list_groups("s")) == ["s/g", "s/part"]
        await store.delete_group("s/part")
        with pytest.raises(NotFoundError, match="reader group s/part does not exist"):
            await store.group("s/part").readers()


async def test_a_group_reads_from_cut_to_cut(tmp_path: Path, run_client: RunClient) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(bound, stream.address)


async def follow_configuration(address: str) -> None:
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 1)
        numbers = Numbers()
        await numbers.write(store, 4)
        with ControllerClient(address) as controller, anyio.fail_after(SECONDS):
            async with group.reader("a") as reader:
                assert (await anext(reader)).data == b"k0-0"
                log = GroupLog(controller, "s", "g", patience=10.0)
                await log.run(log.state.change(lambda _: [UpdateBegun()]))
                await log.aclose()
                message = await anyio.to_thread.run_sync(controller.group_settings, "s", "g")
                await anyio.to_thread.run_sync(controller.update_group, "s", "g", message)
                # Who began the update has died: the reader ends it.
                with pytest.raises(RemovedFromGroupError):
                    await read_on(reader)
            async with aclosing(GroupLog(controller, "s", "g", patience=10.0)) as log:
                state = await log.run(log.state.read())
                assert (state.generation, state.is_updating) == (1, False)


async def test_a_configuration_that_was_begun_is_followed(
    tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_steps, "UPDATE_SECONDS", 0.1)
    async with served_stream(tmp_path) as stream:
        await run_client(follow_configuration, stream.address)


async def refuse_to_compact(address: str) -> None:
    async with segstore_client.connect(address) as store:
        await make_stream(store, 1)
        with ControllerClient(address) as controller:

            async def count_revisions() -> int:
                log = RevisionLog(controller, "s", "_RGg", patience=10.0)
                async with aclosing(log):
                    return len((await log.repeat(log.session.read))[1])

            async with aclosing(GroupLog(controller, "s", "g", patience=10.0)) as log:
                await log.run(log.state.change(lambda _: [ReaderAdded("a")]))
                log.state.state.is_understood = False
                await log.run(log.state.compact_if_long())
                assert await count_revisions() == 2
                log.state.state.is_understood = True
                await log.run(log.state.compact_if_long())
                assert await count_revisions() == 1
                await log.run(log.state.change(lambda _: [ReaderRemoved("a", {})]))
                assert (await log.run(log.state.read())).readers == []


async def test_a_state_with_unknown_changes_is_not_compacted(
    tmp_path: Path, run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_steps, "COMPACTION_BYTES", 10)
    async with served_stream(tmp_path) as stream:
        await run_client(refuse_to_compact, stream.address)


async def publish(address: str) -> None:
    async with segstore_client.connect(address) as store:
        await store.create_scope("s")
        await store.create_stream("s/t")
        await store.create_group(
            "s/g", ["s/t"], checkpoint_seconds=0.1, refresh_seconds=0.1, retains=True
        )
        numbers = Numbers()
        await numbers.write(store, 10)
        with ControllerClient(address) as controller, anyio.fail_after(SECONDS):
            async with aclosing(GroupLog(controller, "s", "g", patience=10.0)) as log:
                async with store.group("s/g").reader("a") as reader:
                    for _ in range(10):
                        await anext(reader)
                    while not ((state := await log.run(log.state.read())).checkpoints.last):
                        with anyio.move_on_after(0.1):
                            await anext(reader)
                    while not (await log.run(log.state.read())).checkpoints.is_published:
                        with anyio.move_on_after(0.1):
                            await anext(reader)
                assert state.settings.retention == RETENTION_AUTOMATIC


async def test_the_last_checkpoint_is_told_to_the_controller(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(publish, stream.address)


async def cancel_changes(address: str) -> None:
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 3, checkpoint_seconds=0.05)
        numbers = Numbers()
        with anyio.fail_after(SECONDS):
            async with group.reader("a") as first, group.reader("b") as second:
                delay = 0.0
                while numbers.written < 200:
                    await numbers.write(store, 4)
                    delay = (delay + 0.003) % 0.05
                    for name, reader in (("a", first), ("b", second)):
                        with anyio.move_on_after(delay):
                            while True:
                                numbers.take(name, (await anext(reader)).data)
                while numbers.count < numbers.written:
                    for name, reader in (("a", first), ("b", second)):
                        with anyio.move_on_after(0.2):
                            numbers.take(name, (await anext(reader)).data)
    numbers.check()


async def test_events_are_read_once_though_readers_are_cancelled(
    tmp_path: Path, run_client: RunClient
) -> None:
    """Readers are cancelled at all moments, while they read and while they change the state."""
    async with served_stream(tmp_path) as stream:
        await run_client(cancel_changes, stream.address)


async def cancel_a_release(address: str) -> None:
    call = StoreConnection.call

    async def call_and_cancel(connection: StoreConnection, request: Request) -> Reply:
        reply = await call(connection, request)
        changes = decode_revision(request.event) if isinstance(request, ConditionalAppend) else []
        if any(isinstance(change, SegmentReleased) for change in changes):
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        return reply

    async with segstore_client.connect(address) as store:
        group, numbers = await make_stream(store, 2, checkpoint_seconds=None), Numbers()
        await numbers.write(store, 20)
        with anyio.fail_after(SECONDS):
            async with group.reader("a") as first:
                while len(first.positions) < 2:
                    numbers.take("a", (await anext(first)).data)
                async with group.reader("b") as second:
                    with pytest.MonkeyPatch.context() as patch, anyio.CancelScope() as scope:
                        patch.setattr(StoreConnection, "call", call_and_cancel)
                        while True:
                            numbers.take("a", (await anext(first)).data)
                    await numbers.write(store, 20)
                    while not numbers.seen.get("b"):
                        with anyio.move_on_after(0.2):
                            numbers.take("b", (await anext(second)).data)
                # It gets back the segment of which it does not know yet that it was without it.
                while numbers.count < numbers.written:
                    numbers.take("a", (await anext(first)).data)
    numbers.check()


async def test_a_segment_that_comes_back_after_a_cancellation_is_read_on(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(cancel_a_release, stream.address)


async def join_under_its_name(address: str) -> None:
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 1)
        numbers = Numbers()
        await numbers.write(store, 4)
        with anyio.fail_after(SECONDS):
            old = await group.reader("a").__aenter__()
            assert (await anext(old)).data == b"k0-0"
            await group.remove_reader("a")
            new = await group.reader("a").__aenter__()
            assert (await anext(new)).data == b"k0-0"
            with pytest.raises(RemovedFromGroupError):
                await read_on(old)
            await new.drop()
            # It does not take the other one out when it goes.
            await old.__aexit__(None, None, None)
            assert await group.readers() == ["a"]


async def test_a_reader_that_was_removed_is_not_the_next_one_of_its_name(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(join_under_its_name, stream.address)


async def clear_at_once(address: str) -> None:
    """Complete a checkpoint, begin the next one and clear, by one append, as a late reader does."""
    async with segstore_client.connect(address) as store:
        group = await make_stream(store, 1, checkpoint_seconds=None)
        with ControllerClient(address) as controller, anyio.fail_after(SECONDS):
            async with aclosing(GroupLog(controller, "s", "g", patience=10.0)) as log:
                await log.run(log.state.read())
                await log.run(log.state.change(lambda _: [ReaderAdded("a")]))
                cuts: dict[str, Mapping[int, int]] = {}

                async def take_checkpoint() -> None:
                    cuts.update(await group.checkpoint("mine"))

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(take_checkpoint)
                    while not (await log.run(log.state.read())).checkpoints.next_of("a"):
                        await anyio.lowlevel.checkpoint()
                    changes = [
                        CheckpointReached("mine", "a", {}),
                        CheckpointBegun("next"),
                        CheckpointsCleared("next"),
                    ]
                    await log.run(log.state.change(lambda _: changes))
                assert cuts == {"s/t": {0: 0}}


async def test_a_checkpoint_that_is_cleared_in_the_moment_it_is_complete_is_taken(
    tmp_path: Path, run_client: RunClient
) -> None:
    async with served_stream(tmp_path) as stream:
        await run_client(clear_at_once, stream.address)


async def checkpoint_amid_merge(
    address: str, stream: ServedStream, token: trio.lowlevel.TrioToken
) -> None:
    def merge() -> None:
        trio.from_thread.run(stream.scale, (0.0, 1.0), trio_token=token)

    async with segstore_client.connect(address) as store:
        await store.create_scope("s")
        await store.create_stream("s/t", scaling=Scaling(segment_count_min=1))
        await anyio.to_thread.run_sync(split, stream, token)
        await store.create_group("s/g", ["s/t"], refresh_seconds=0.1, checkpoint_seconds=None)
        group, numbers = store.group("s/g"), Numbers()
        await numbers.write(store, 40)
        await anyio.to_thread.run_sync(merge)
        await numbers.write(store, 8)
        cuts: dict[str, Mapping[int, int]] = {}

        async def take_checkpoint() -> None:
            cuts.update(await group.checkpoint("x"))

        with ControllerClient(address) as controller, anyio.fail_after(SECONDS):
            log = GroupLog(controller, "s", "g", patience=10.0)
            async with aclosing(log), group.reader("a") as quick, group.reader("b") as slow:
                while not any(slow.positions.values()):
                    for reader in (quick, slow):
                        with anyio.move_on_after(0.1):
                            await anext(reader)
                # One predecessor of the merged segment is read, the other one is not.
                while not (await log.run(log.state.read())).future:
                    with anyio.move_on_after(0.1):
                        await anext(quick)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(take_checkpoint)
                    while not cuts:
                        for reader in (quick, slow):
                            if (await log.run(log.state.read())).checkpoints.next_of(reader.name):
                                with anyio.move_on_after(0.2):
                                    await anext(reader)
        assert len(cuts["s/t"]) == 2
        assert -1 in cuts["s/t"].values()
        await group.reset(cuts)
        with anyio.fail_after(SECONDS):
            async with group.reader("a") as reader:
                # The merged segment is read behind the rest of the other one.
                merged = set[int]()
                while len(merged) < 8:
                    number = number_of((await anext(reader)).data.decode())
                    merged |= {number} if number >= 40 else set()


def split(stream: ServedStream, token: trio.lowlevel.TrioToken) -> None:
    trio.from_thread.run(stream.scale, (0.0, 0.5), (0.5, 1.0), trio_token=token)


async def test_a_checkpoint_amid_a_merge_is_a_whole_cut(
    tmp_path: Path, run_client: RunClient
) -> None:
    token = trio.lowlevel.current_trio_token()
    async with served_stream(tmp_path) as stream:
        await run_client(checkpoint_amid_merge, stream.address, stream, token)
