"""The simulation finds what is wrong: stores with planted faults do not pass."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import trio
from simulation import run
from simulation.plan import KIB, MIB, Plan
from simulation.run import FailedSeedError, simulate
from simulation.scheduler import STEP_CPU_SECONDS_MAX
from simulation.store import Faults, NoFaults

from pravega_wire import codec
from pravega_wire import commands as wire
from segstore.api import OnRead, ReadHandle, ReadResult, SegmentInfo
from segstore.chunks import checksums
from segstore.chunks.checked_reads import CheckedReads
from segstore.chunks.records import Chunk
from segstore.errors import (
    ChunkDamagedError,
    ChunkNotFoundError,
    InvalidChunkOffsetError,
    SegmentStoreError,
    StorageError,
)
from segstore.model.metadata import SegmentMetadata
from segstore.model.operations import TruncateOperation
from segstore.network import handler_table, server
from segstore.network.admission.buffer_bytes import ReplyBytes, Reservation, Reservations
from segstore.network.admission.send_buffer import SendBuffer
from segstore.network.connection import ServerConnection
from segstore.tiers.api import Buffer, LogAddress
from segstore.tiers.journal import Journal, files, recovery
from segstore.tiers.journal.contents import NotedContents
from segstore.tiers.journal.disk import Disk
from segstore.tiers.journal.files import JournalFile
from segstore.tiers.journal.format import Kind, Record, StoredRecord
from segstore.tiers.journal.state import JournalState
from segstore.tiers.journal.writer import BatchWriter, PreparedBatch
from segstore.tiers.s3 import objects
from segstore.writer import storage_writer
from segstore.writer.segment_aggregator import SegmentAggregator
from support.simulated.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.proof

SEEDS = range(2, 14)


def first_failure(planted: Callable[[], Faults], *, seeds: range = SEEDS, **changes: object) -> str:
    """Return the message of the first seed, of some seeds, that fails."""
    for seed in seeds:
        drawn = Plan.draw(Random(seed))
        changes = {"disk_fault_rate": 0, "with_objects": False} | changes
        plan = replace(drawn, **changes)  # type: ignore[arg-type]
        try:
            simulate(seed, plan=plan, planted=planted())
        except FailedSeedError as error:
            return str(error).splitlines()[0]
    return "nothing"


class Behind:
    """A container that passes everything on to the one behind it."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def is_turn(self, every: int) -> bool:
        """Return True once in this many calls."""
        self._count += 1
        return self._count % every == 0


class UnsyncedJournal(NoFaults):
    def disk(self) -> SimulatedDisk:
        return SimulatedDisk(ignores_syncs=True)


def test_a_journal_that_acknowledges_before_it_syncs_is_found() -> None:
    found = first_failure(UnsyncedJournal, lives=6, life_steps=300)
    assert "after no prefix" in found or "tier 1 is damaged" in found


SHARED = {"containers": 3, "bytes_max": 300 * KIB, "cache_bytes": 16 * MIB, "lives": 6}


def test_a_shared_journal_that_acknowledges_before_it_syncs_is_found() -> None:
    found = first_failure(UnsyncedJournal, life_steps=300, **SHARED)
    assert "after no prefix" in found or "tier 1 is damaged" in found


def test_a_shared_file_that_is_freed_when_one_container_needs_it_no_more_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def free_files(self: Journal) -> None:
        for generation, positions in list(self._last_positions.items()):
            if generation != self._current_generation and any(
                position < self._logs[container_id].first_position
                for container_id, position in positions.items()
            ):
                del self._last_positions[generation]
                self._queue.control.append(Record(Kind.FREE, 0, 0, generation))
                self._runner.wake()

    monkeypatch.setattr(Journal, "_free_files", free_files)
    found = first_failure(NoFaults, held_bytes_max=2 * MIB, writers=3, **SHARED)
    assert "tier 1 is damaged" in found or "tier 1 failed" in found, found


def test_a_truncation_that_is_taken_for_all_containers_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply = JournalState.apply

    def apply_to_all(self: JournalState, record: Record | StoredRecord) -> None:
        apply(self, record)
        if record.kind == Kind.TRUNCATE:
            for container in self.containers.values():
                last = min(record.position, container.next_position)
                container.first_position = max(container.first_position, last)

    monkeypatch.setattr(JournalState, "apply", apply_to_all)
    # One of ten seeds finds it.
    found = first_failure(NoFaults, seeds=range(26, 60), held_bytes_max=MIB, writers=3, **SHARED)
    assert any(
        part in found for part in ("after no prefix", "tier 1 is damaged", "tier 1 failed")
    ), found


def test_a_damaged_record_that_takes_all_containers_offline_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NotedContents, "read", lambda *_: None)
    found = first_failure(
        NoFaults, damage_rate=1.0, held_bytes_max=8 * MIB, writers=3, **SHARED | {"lives": 8}
    )
    assert "tier 1 is damaged" in found


class ForgetfulChunks(Behind):
    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        if not self.is_turn(5):
            await self._real.write(name, offset=offset, data=data, meanwhile=meanwhile)
        elif meanwhile is not None:
            meanwhile()


class WrongChunks(Behind):
    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        joined = b"".join(data)
        if self.is_turn(5) and joined:
            joined = bytes([joined[0] ^ 1]) + joined[1:]
        await self._real.write(name, offset=offset, data=[joined], meanwhile=meanwhile)


class UndeletedChunks(Behind):
    async def delete(self, name: str) -> None:
        return


def planted_chunks(kind: type[Behind]) -> Callable[[], Faults]:
    class Planted(NoFaults):
        def chunks(self, storage: Any) -> Any:
            return kind(storage)

    return Planted


@pytest.mark.parametrize("kind", [ForgetfulChunks, WrongChunks])
def test_a_tier_2_that_loses_or_damages_a_write_is_found(kind: type[Behind]) -> None:
    found = first_failure(planted_chunks(kind), historical_readers=2)
    assert found != "nothing"


def test_a_tier_2_that_keeps_what_was_deleted_is_found() -> None:
    found = first_failure(planted_chunks(UndeletedChunks), lifecycle_clients=2)
    assert "tier 2 keeps" in found


def test_a_container_that_tier_2_ends_while_it_serves_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage_writer, "is_strange", lambda _: True)
    found = first_failure(
        NoFaults,
        seeds=range(1, 60),
        lives=10,
        life_steps=1200,
        tier_2_seconds=0.05,
        tier_2_outage_rate=0.8,
    )
    assert "tier 2 ends a container that serves" in found, found


class EagerLog(Behind):
    """A log that truncates at its end, whatever it is asked for."""

    def append_nowait(self, parts: Sequence[Buffer], on_durable: Any) -> LogAddress:
        self.last: LogAddress = self._real.append_nowait(parts, on_durable)
        return self.last

    async def truncate(self, address: LogAddress) -> None:
        await self._real.truncate(LogAddress(self.last.position + 1))


class EagerLogs(NoFaults):
    def logs(self, factory: Any) -> Any:
        class Logs(Behind):
            async def open_log(self, container_id: int) -> Any:
                return EagerLog(await factory.open_log(container_id))

        return Logs(factory)


def test_a_log_that_is_truncated_past_what_tier_2_has_is_found() -> None:
    found = first_failure(EagerLogs, lives=6, life_steps=600, held_bytes_max=1)
    assert "tier 1 is damaged" in found or "tier 1 failed" in found or "after no prefix" in found


class StaleCache(Behind):
    """A container that answers a read with the bytes of another one now and then."""

    stale = b""

    def read_nowait(
        self, name: str, *, offset: int, length_max: int, on_complete: OnRead, **arguments: Any
    ) -> ReadHandle | None:
        def complete(error: SegmentStoreError | None, result: ReadResult | None) -> None:
            if result is not None and result.data:
                data, self.stale = self.stale, result.data
                if self.is_turn(7) and len(data) >= len(result.data):
                    data = data[: len(result.data)]
                    result = ReadResult(offset, data, result.at_tail, result.end_of_segment)
            on_complete(error, result)

        handle: ReadHandle | None = self._real.read_nowait(
            name, offset=offset, length_max=length_max, on_complete=complete, **arguments
        )
        return handle


class DoubleAppends(Behind):
    def append_nowait(self, name: str, data: Buffer, **arguments: Any) -> None:
        if self.is_turn(10):
            ignored = arguments | {"on_complete": lambda error, length: None}
            self._real.append_nowait(name, data, **ignored)
        self._real.append_nowait(name, data, **arguments)


class LostAttributes(Behind):
    def append_nowait(self, name: str, data: Buffer, **arguments: Any) -> None:
        if self.is_turn(10):
            arguments["attribute_updates"] = ()
        self._real.append_nowait(name, data, **arguments)


class StaleInfo(Behind):
    """A container that tells the length that a segment once had."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self._known: dict[str, SegmentInfo] = {}

    async def find_info(self, name: str) -> SegmentInfo:
        return self._known.setdefault(name, await self._real.find_info(name))


class EarlySeals(Behind):
    """A container that says that a segment is sealed, and forgets to seal it."""

    async def seal_segment(self, name: str) -> int:
        length: int = self._real.segment_info(name).length
        return length


class Silence(Behind):
    """A container that does not answer."""

    async def seal_segment(self, name: str) -> int:
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (StaleCache, "bytes that are not there"),
        (DoubleAppends, "answered"),
        (LostAttributes, "answered"),
        (StaleInfo, "SegmentInfo"),
        (EarlySeals, "answered|no state of the container|after no prefix"),
        (Silence, "no answer came"),
    ],
)
def test_a_container_that_misbehaves_is_found(kind: type[Behind], message: str) -> None:
    class Planted(NoFaults):
        def container(self, container: Any) -> Any:
            return kind(container)

    found = first_failure(Planted, tail_readers=2, with_scaling=True)
    assert any(part in found for part in message.split("|")), found


class LostReplies(Behind):
    """A server whose replies are lost now and then, while the connection stays."""

    async def send_all(self, data: bytes) -> None:
        if not self.is_turn(4):
            await self._real.send_all(data)


class DamagedReplies(Behind):
    """A server that sends other bytes now and then."""

    async def send_all(self, data: bytes) -> None:
        if len(data) > 1000:
            data = data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]
        await self._real.send_all(data)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (LostReplies, "comes after|no reply|got"),
        (DamagedReplies, "other bytes|asked|got|Exceptions from Trio nursery"),
    ],
)
def test_a_server_or_network_that_misbehaves_is_found(kind: type[Behind], message: str) -> None:
    class Planted(NoFaults):
        def stream(self, stream: Any) -> Any:
            return kind(stream)

    found = first_failure(
        Planted, wire_writers=3, wire_readers=2, network_reset_bytes=0, operations=400
    )
    assert any(part in found for part in message.split("|")), found


class BusyContainer(Behind):
    def append_nowait(self, name: str, data: Buffer, **arguments: Any) -> None:
        if self.is_turn(100):
            began = time.thread_time()
            while time.thread_time() - began < 1.1 * STEP_CPU_SECONDS_MAX:
                pass
        self._real.append_nowait(name, data, **arguments)


class WithBusyContainer(NoFaults):
    def container(self, container: Any) -> Any:
        return BusyContainer(container)


def test_a_request_that_keeps_the_loop_for_seconds_is_found() -> None:
    assert "kept the processor" in first_failure(WithBusyContainer)


def test_a_connection_that_keeps_its_unsent_replies_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SendBuffer, "discard", SendBuffer.finish)
    found = first_failure(NoFaults, wire_readers=3, wire_writers=3)
    assert "bytes in buffers" in found


def test_times_that_follow_a_clock_that_is_set_back_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def record_change(self: SegmentMetadata, now_ms: int) -> None:
        self.was_used = True
        self.last_modified_ms = now_ms

    monkeypatch.setattr(SegmentMetadata, "record_change", record_change)
    assert "the last change was at" in first_failure(NoFaults)


def test_a_store_that_does_not_check_its_chunks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "find_damage", lambda *_: -1)
    found = first_failure(
        NoFaults, damages_chunks=True, historical_readers=3, cache_bytes=4 * MIB, flip_bits=False
    )
    assert found != "nothing"


@pytest.mark.parametrize("refusal", [ChunkNotFoundError, InvalidChunkOffsetError])
def test_a_store_that_serves_zeros_for_what_a_chunk_lacks_is_found(
    refusal: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = CheckedReads._read

    async def fill_up(self: CheckedReads, chunk: Chunk, first: int, last: int, end: int) -> Buffer:
        try:
            return await read(self, chunk, first, last, end)
        except ChunkDamagedError as error:
            if not isinstance(error.__cause__, refusal):
                raise
            return bytes(end - first)

    monkeypatch.setattr(CheckedReads, "_read", fill_up)
    found = first_failure(
        NoFaults,
        seeds=range(8, 30),
        damages_chunks=True,
        historical_readers=3,
        cache_bytes=4 * MIB,
        flip_bits=False,
    )
    assert "bytes" in found, found


def test_a_store_that_checks_its_chunks_serves_no_wrong_bit() -> None:
    # Which seeds meet a wrong bit changes with every other fault that is drawn.
    for seed in range(9, 40):
        plan = Plan.draw(Random(seed))
        plan = replace(plan, with_objects=False, disk_fault_rate=0, flip_bits=False)
        plan = replace(plan, damages_chunks=True, historical_readers=3, cache_bytes=4 * MIB)
        result = simulate(seed, plan=plan)
        if result.fault_counts["bit of a chunk is wrong"]:
            return
    pytest.fail("no seed meets a wrong bit")


JOURNAL_FAULTS = {
    "disk_fault_rate": 1.0,
    "lives": 8,
    "life_steps": 400,
    "tier_2_seconds": 1,
    "tier_2_outage_rate": 0.5,
    "drain_seconds": 0,
}
"""Lives begin with files that are needed, and their disk fails."""
HOSTILE = {
    "half_frame_clients": 0,
    "deaf_readers": 0,
    "long_request_clients": 0,
    "wire_writers": 2,
    "operations": 100,
}


def test_half_frames_that_take_memory_without_a_bound_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def grant(self: Reservations, reservation: Reservation, count: int) -> bool:
        self.count += count - reservation.count
        reservation.count = count
        self.holders[reservation] = None
        return True

    monkeypatch.setattr(Reservations, "grant", grant)
    found = first_failure(
        NoFaults,
        **HOSTILE
        | {"half_frame_clients": 12, "network_reset_bytes": 0, "lives": 1, "life_steps": 1200},
    )
    assert "bytes of incomplete commands" in found, found


def test_half_frames_that_are_not_counted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reservation, "try_grow", lambda self, count: True)
    found = first_failure(NoFaults, **HOSTILE | {"half_frame_clients": 4})
    assert "bytes of commands that are not reserved" in found, found


def test_half_frames_that_may_stay_for_ever_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerConnection, "end_if_stalled", lambda self, now: None)
    found = first_failure(NoFaults, **HOSTILE | {"half_frame_clients": 4})
    assert "no reply" in found or "no answer" in found, found


def test_unsent_replies_without_a_bound_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplyBytes, "read_bytes_max", 2 * MIB)
    monkeypatch.setattr(SendBuffer, "is_full", False)
    monkeypatch.setattr(SendBuffer, "has_room", True)
    found = first_failure(
        NoFaults, **HOSTILE | {"deaf_readers": 4, "bytes_max": 300 * KIB, "writers": 4}
    )
    assert "bytes of unsent replies" in found, found


def test_a_request_of_100_000_items_that_is_served_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "REQUEST_ITEMS_MAX", wire.COMMAND_BYTES_MAX)
    monkeypatch.setattr(handler_table, "SEGMENTS_MAX", wire.COMMAND_BYTES_MAX)
    monkeypatch.setattr(codec, "_DECODERS", codec._Decoders())
    found = first_failure(
        NoFaults,
        **HOSTILE
        | {"long_request_clients": 1, "network_reset_bytes": 0, "lives": 1, "life_steps": 1200},
    )
    # A quick processor serves it item by item, in more steps than any seed takes.
    assert "kept the processor" in found or "no end after" in found, found


def test_a_lack_of_descriptors_that_ends_the_listener_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_LACKS", frozenset())
    found = first_failure(NoFaults, **HOSTILE)
    assert "OSError" in found or "sub-exception" in found, found


def test_a_journal_file_that_is_passed_over_for_lack_of_descriptors_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def open_or_pass_over(disk: Disk, name: str) -> JournalFile | None:
        try:
            return files.open_existing(disk, name)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            return None

    monkeypatch.setattr(recovery, "open_existing", open_or_pass_over)
    found = first_failure(NoFaults, seeds=range(2, 40), **JOURNAL_FAULTS)
    assert "tier 1 is damaged" in found or "after no prefix" in found, found


def test_a_write_that_is_acknowledged_although_memory_was_lacking_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = BatchWriter.write

    def write_carelessly(self: BatchWriter, batch: PreparedBatch) -> OSError | None:
        error = write(self, batch)
        return None if error is not None and error.errno == errno.ENOMEM else error

    monkeypatch.setattr(BatchWriter, "write", write_carelessly)
    found = first_failure(NoFaults, seeds=range(40, 80), **JOURNAL_FAULTS)
    assert "tier 1 is damaged" in found or "after no prefix" in found, found


def test_a_lack_of_memory_for_a_request_that_ends_the_container_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        objects, "REQUEST_ERRORS", tuple(set(objects.REQUEST_ERRORS) - {MemoryError})
    )
    found = first_failure(NoFaults, with_objects=True, operations=400, lives=8)
    assert found != "nothing"


def test_a_truncation_that_waits_for_room_to_write_what_it_drops_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = SegmentAggregator._free_truncated

    async def free_in_log_order(self: SegmentAggregator) -> None:
        if self._operations and isinstance(self._operations[0], TruncateOperation):
            await free(self)

    monkeypatch.setattr(SegmentAggregator, "_free_truncated", free_in_log_order)
    monkeypatch.setattr(run, "ANSWER_SECONDS_MAX", 150.0)
    with pytest.raises(FailedSeedError, match=r"no answer came|of the space are used"):
        simulate(25)
