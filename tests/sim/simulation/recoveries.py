"""Stores that lose files of their tiers, are recovered, and go on.

Owns: ``simulate_recoveries``: a store with segments of streams and a table, an operator who loses,
ages and exchanges files of the journal and of tier 2 while it does not run, ``segstore recover``
after each of them, and the model, which finds what is provable in the bytes of both tiers itself.

Lives run on simulated tiers. A recovery runs on the journal's files in a real directory.

Invariants:
1. A recovery of a store to which nothing happened has nothing to do; nor has a second recovery.
2. Every event and entry of which the journal or tier 2 has all bytes is there afterwards, at its
   offset; no other bytes than those that were written are ever read.
3. As long as the journal is whole, no segment ends earlier than it did, and everything that is not
   readable was told. No segment ends before the head that a controller keeps.
4. What is written afterwards comes behind all this, and is read by who begins at the head.
"""

from __future__ import annotations

import copy
import re
import shutil
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import patch

import trio

from _fast.cache.streaming_cache import StreamingCache
from pravega_wire.commands import TableEntry, TableKey
from pravega_wire.event_framing import frame_event
from segstore.api import SegmentContainer
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.container import Container, open_container
from segstore.errors import (
    BytesLostError,
    ChunkDamagedError,
    NoSuchSegmentError,
    SegmentStoreError,
    leaf_errors,
)
from segstore.model.attributes import ROLLOVER_SIZE
from segstore.ownership.claims import owned
from segstore.ownership.data_directory import DataDirectory
from segstore.process.config import SegmentStoreConfig
from segstore.process.tier_two import EpochRecordingLogs, open_storage
from segstore.repair.recover import RecoveryPlan, open_recovery
from segstore.repair.salvage import Required, RequiredSegment
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import TableSegments
from segstore.tiers.journal import JournalSettings, open_journal
from segstore.tiers.journal.runner import InlineRunner
from segstore.tiers.memory import MemoryChunkStorage
from segstore.writer.flush_policy import FlushPolicy
from simulation.logs import logs_dropped
from simulation.scheduler import Trace, run_seeded
from simulation.stored import parse_chunk_name
from support.simulated.simulated_disk import SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal, run_in_place

KIB = 1024
FILE_BYTES = 1024 * KIB
STREAMS = ("scope/first/0.#epoch.0", "scope/second/0.#epoch.0")
TABLE = "scope/_tables/table"
KEYS = 12
BOOT_ID = "8d0b4ea6-3c1c-4f58-8d5b-3d4a2f4a9d55"
ROUNDS = 3
STEPS_MAX = 60
CACHE_BYTES = 4096 * KIB
SETTINGS = JournalSettings(
    file_bytes=FILE_BYTES,
    journal_bytes_max=24 * FILE_BYTES,
    batch_bytes_max=FILE_BYTES,
    files_spare_max=1,
)
TABLE_SETTINGS = TableSettings(
    index_count=8,
    index_bytes=KIB,
    index_seconds=1,
    compaction_bytes_min=KIB,
    compaction_step_bytes=KIB,
)


class RecoveriesError(AssertionError):
    """A recovery has lost, invented or moved something, or did not say so."""


@dataclass
class Segment:
    """One segment of a stream, as clients know it."""

    data: bytearray = field(default_factory=bytearray)
    events: list[tuple[int, int]] = field(default_factory=list)
    """Where each acknowledged event begins and ends."""
    head: int = 0
    """Offset of the last truncation."""


@dataclass
class Truth:
    """All that was acknowledged."""

    segments: dict[str, Segment] = field(default_factory=lambda: {n: Segment() for n in STREAMS})
    values: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Every value of each key in its order; empty for a removal."""


@dataclass
class Tiers:
    """Both tiers of a store that does not run, and what was acknowledged on them."""

    disk: SimulatedDisk
    chunks: MemoryChunkStorage
    truth: Truth
    identity: bytes = b""
    """What lies beside the journal's files and ties it to tier 2."""

    def copied(self) -> Tiers:
        """Return a backup of both."""
        chunks, truth = copy.deepcopy(self.chunks), copy.deepcopy(self.truth)
        return Tiers(self.disk.after_kill(), chunks, truth, self.identity)


@dataclass
class Proof:
    """What the journal and tier 2 have of the truth, by their bytes.

    All bytes of a chunk count, unless an owner was in doubt, as after a power cut. It counted the
    last chunk as far as was certain, closed it there, and wrote what follows in the log into
    another chunk (docs/adr/0198). In the simulation the first chunk has the same bytes behind its
    recorded end. But nothing there tells so: they could be those of a write that was never synced,
    and no checksum covers them. So they prove nothing, also when the other chunk is lost.
    """

    log: bytes
    images: dict[str, list[tuple[int, bytes]]]
    """What counts of the chunks of each segment, with the offsets at which they begin, without
    those that wait for their deletion."""
    entries: list[bytes] = field(default_factory=list)
    """What counts of the chunks that the table has; those that follow each other are joined."""

    def has(self, name: str, start: int, data: bytes) -> bool:
        """Return whether one of the tiers has these bytes of a segment."""
        if data in self.log:
            return True
        found = bytearray(len(data))
        count = 0
        for begin, image in self.images.get(name, ()):
            for offset in range(max(start, begin), min(start + len(data), begin + len(image))):
                found[offset - start] = image[offset - begin]
                count += 1
        return count >= len(data) and found == data

    def has_entry(self, key: bytes, value: bytes) -> bool:
        """Return whether one of the tiers has all bytes of an entry of the table, wherever it
        begins and whatever its version. Nobody can tell key and value without the lengths."""
        lengths = re.escape(struct.pack(">Bii", 0, len(key), len(value)))
        entry = re.compile(lengths + b".{8}" + re.escape(key + value), re.DOTALL)
        return any(entry.search(each) for each in (self.log, *self.entries))


def join_neighbors(pieces: list[tuple[int, bytes]]) -> list[bytes]:
    """Return these bytes, each with its offset, joined where one ends and the next one begins."""
    found: list[bytes] = []
    end = None
    for start, data in sorted(pieces):
        if start == end:
            data = found.pop() + data
        found.append(data)
        end = start + len(data)
    return found


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        # Drawn apart, so that the runs of other simulations with this seed stay what they are.
        self.random = Random(f"recoveries {seed}")
        self.seed = seed
        self.path = folder / "data"
        self.config = SegmentStoreConfig(
            data_dir=self.path,
            container_count=1,
            journal_file_bytes=FILE_BYTES,
            journal_bytes_max=24 * FILE_BYTES,
        )
        self.tiers = Tiers(SimulatedDisk(), MemoryChunkStorage(), Truth())
        self.backups: list[Tiers] = []
        self.counts: Counter[str] = Counter()
        self.trace = Trace()
        self.number = 0
        self.expect: Callable[[SegmentContainer], object] | None = None
        self.harmed: set[str] = set()
        """Segments of which a chunk has other bytes now."""
        self.may_doubt = False
        """Whether a claim was harmed, so that an owner could not tell on which start of the machine
        earlier chunks were written."""

    def note(self, what: str) -> None:
        self.counts[what] += 1

    @property
    def identity_path(self) -> Path:
        """Return the file that ties the journal to tier 2."""
        return self.path / "journal-0" / "identity.toml"

    # ---- A life ----------------------------------------------------------------------------------

    def live(self, plan: RecoveryPlan | None, before: Tiers | None, *, journal: str) -> None:
        """Run the store once; first compare it with what a recovery had to leave."""
        is_clean = self.random.random() < 0.5

        async def main() -> None:
            with trio.CancelScope() as scope:
                async with self.serving() as (container, tables):
                    if before is not None and plan is not None:
                        await self.compare(container, tables, plan, before, journal)
                    await self.work(container, tables)
                    if not is_clean:
                        self.tiers.identity = self.identity_path.read_bytes()
                        killed = self.tiers.copied()
                        scope.cancel()
            if is_clean:
                self.tiers.identity = self.identity_path.read_bytes()
            else:
                self.identity_path.write_bytes(killed.identity)
                self.tiers = killed
                self.note("killed")

        try:
            run_seeded(self.random.getrandbits(32), main, self.trace, lambda: None, lambda _: None)
        except BaseExceptionGroup as group:
            raise next(leaf_errors(group)) from group

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[Container, TableSegments]]:
        """Run a container on the tiers, for the block."""
        random, tiers = self.random, self.tiers
        directory = DataDirectory.open(self.path, container_count=1)
        with directory.lock_journal(0):
            async with (
                open_storage(self.config, directory, given=tiers.chunks) as tier,
                owned(directory, tier, [0], random_bytes=random.randbytes),
                open_simulated_journal(tiers.disk, SETTINGS, random=random) as journal,
            ):
                logs = EpochRecordingLogs(journal)
                segments = ChunkedSegmentStorage(
                    tiers.chunks,
                    epoch=logs.epoch_now,
                    garbage_delay_seconds=random.choice([0.05, 60]),
                    move_bytes_min=random.choice([1, KIB * KIB]),
                    snapshot_bytes_min=random.choice([1, 4]) * KIB,
                    boot_id=BOOT_ID,
                )
                logs.check_log = segments.check_log
                async with open_container(
                    0,
                    logs,
                    segments,
                    CacheManager(StreamingCache(CACHE_BYTES)),
                    now_ms=lambda: int(trio.current_time() * 1000),
                    drain_seconds=random.choice([0, 5]),
                    flush_policy=FlushPolicy(
                        held_bytes_max=random.choice([1, 1000, 1_000_000]), checkpoint_seconds=0.1
                    ),
                ) as container:
                    tables = TableSegments(container, TABLE_SETTINGS)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(tables.run)
                        for name in (*STREAMS, TABLE):
                            try:
                                await container.activate(name)
                                container.segment_info(name)
                            except NoSuchSegmentError:
                                await self.create(container, tables, name)
                        yield container, tables
                        nursery.cancel_scope.cancel()

    async def create(self, container: Container, tables: TableSegments, name: str) -> None:
        """Make a segment, or make it anew if a recovery has not found it."""
        if name == TABLE:
            await tables.create(TABLE)
            self.tiers.truth.values.clear()
            return
        rollover_bytes = self.random.choice([0, 200, 2000])
        await container.create_segment(name, attributes={ROLLOVER_SIZE: rollover_bytes})
        self.tiers.truth.segments[name] = Segment()

    async def work(self, container: Container, tables: TableSegments) -> None:
        """Do what clients and the store itself do."""
        random, truth = self.random, self.tiers.truth
        for _ in range(random.randrange(STEPS_MAX)):
            name = random.choice(STREAMS)
            kind = random.choices(
                ["append", "put", "merge", "truncate", "flush", "checkpoint", "wait"],
                [10, 8, 2, 1, 2, 1, 2],
            )[0]
            if kind == "append":
                await self.append(container, name)
            elif kind == "put":
                await self.put(tables)
            elif kind == "merge":
                await self.merge(container, name)
            elif kind == "truncate" and truth.segments[name].events:
                begin, end = random.choice(truth.segments[name].events)
                offset = max(truth.segments[name].head, random.choice([begin, end]))
                await container.truncate_segment(name, offset=offset)
                truth.segments[name].head = offset
            elif kind == "flush":
                await container.flush()
            elif kind == "checkpoint":
                await container.checkpoint()
            elif kind == "wait":
                await trio.sleep(random.choice([0.1, 3, 30]))

    def new_events(self) -> list[bytes]:
        events = []
        for _ in range(self.random.randint(1, 4)):
            self.number += 1
            filler = b"x" * self.random.randrange(120)
            events.append(frame_event(b"event %d %s" % (self.number, filler)))
        return events

    async def append(self, container: Container, name: str) -> None:
        """Append a few events, and see where they come."""
        events = self.new_events()
        await container.activate(name)
        end = await container.append(name, b"".join(events))
        self.add(name, events, end)

    def add(self, name: str, events: list[bytes], end: int) -> None:
        segment = self.tiers.truth.segments[name]
        data = b"".join(events)
        if end - len(data) != len(segment.data):
            raise RecoveriesError(
                f"{name}: an append came to {end - len(data)}, and the segment ended at"
                f" {len(segment.data)}"
            )
        for event in events:
            begin = len(segment.data)
            segment.data += event
            segment.events.append((begin, len(segment.data)))

    async def merge(self, container: Container, name: str) -> None:
        """Write and commit a transaction."""
        self.number += 1
        source = f"{name}#transaction.{self.number:032x}"
        events = self.new_events()
        await container.create_segment(source)
        await container.append(source, b"".join(events))
        if self.random.random() < 0.5:
            await container.flush()
        await container.seal_segment(source)
        await container.activate(name)
        await container.merge_segment(name, source)
        self.add(name, events, container.segment_info(name).length)

    async def put(self, tables: TableSegments) -> None:
        """Update a key, or remove it."""
        key = b"key %d" % self.random.randrange(KEYS)
        values = self.tiers.truth.values.setdefault(key, [])
        self.number += 1
        if values and values[-1] and self.random.random() < 0.2:
            await tables.remove(TABLE, [TableKey(key)])
            values.append(b"")
        else:
            values.append(b"value %d;" % self.number)
            await tables.update(TABLE, [TableEntry(TableKey(key), values[-1])])

    # ---- The operator ----------------------------------------------------------------------------

    async def prove(self) -> Proof:
        """Look at the bytes of both tiers."""
        entries: list[bytes] = []
        async with open_simulated_journal(self.tiers.disk.after_kill(), SETTINGS) as journal:
            log = await journal.open_log(0)
            entries += [bytes(entry.data) async for entry in log.read()]
        storage = ChunkedSegmentStorage(self.tiers.chunks, epoch=lambda: 0, boot_id=BOOT_ID)
        metadata = (await storage.inspect(tolerates_damage=True)).metadata
        used = set(metadata.chunk_names())
        closed = {
            chunk.name: chunk.length
            for record in map(metadata.get, metadata.segment_names())
            for chunk in (record.chunks if record is not None else ())
            if not chunk.is_open and self.may_doubt
        }
        images: dict[str, list[tuple[int, bytes]]] = {}
        table: dict[str, list[tuple[int, bytes]]] = {}
        for chunk in await self.tiers.chunks.list_chunks(""):
            name, start = parse_chunk_name(chunk.name)
            length = min(chunk.length, closed.get(chunk.name, chunk.length))
            if start is not None and length and chunk.name not in metadata.condemned:
                data = await self.tiers.chunks.read(chunk.name, offset=0, length=length)
                images.setdefault(name, []).append((start, bytes(data)))
                if name == TABLE and chunk.name in used:
                    # A table that was made anew has other chunks under the same name.
                    storage_name = chunk.name.rpartition("$")[0]
                    table.setdefault(storage_name, []).append((start, bytes(data)))
        joined = [run for each in table.values() for run in join_neighbors(each)]
        return Proof(b"\n".join(entries), images, joined)

    def harm(self) -> str:
        """Lose, age or exchange something; return what has become of the journal: it is whole,
        older, lost or damaged."""
        random, tiers = self.random, self.tiers
        kinds = ["nothing", "chunks", "chunks", "chunks", "journal lost", "journal damaged"]
        kinds += ["metadata"]
        if self.backups:
            kinds += ["tier 2 older", "tier 2 older", "journal older", "both older"]
        kind = random.choice(kinds)
        self.note(kind)
        if kind == "chunks":
            for _ in range(random.randint(1, 3)):
                self.harm_chunk()
        if kind == "metadata":
            self.harm_metadata()
        if kind.startswith("journal") and random.random() < 0.5:
            random.choice([self.harm_chunk, self.harm_metadata])()
        if kind in ("tier 2 older", "both older"):
            tiers.chunks = copy.deepcopy(random.choice(self.backups).chunks)
        if kind in ("journal older", "both older"):
            backup = random.choice(self.backups)
            tiers.disk, tiers.identity = backup.disk.after_kill(), backup.identity
            return "older"
        if kind == "journal lost":
            tiers.disk = SimulatedDisk()
            return "lost"
        if kind == "journal damaged":
            name = random.choice(tiers.disk.list_files())
            length = len(tiers.disk.content(name).rstrip(b"\0"))
            if length:
                tiers.disk.cut(name, random.randrange(length))
            return "damaged"
        return "whole"

    def harm_chunk(self) -> None:
        """Lose a chunk of a segment, its end, or exchange it with another one."""
        chunks = self.tiers.chunks.contents
        segments = {name: parse_chunk_name(name) for name in sorted(chunks) if chunks[name]}
        names = [
            name
            for name, (_, start) in segments.items()
            if start is not None or "$attributes.index$" in name
        ]
        if not names:
            return
        name = self.random.choice(names)
        # Bytes of the last seconds have no checksums: what is exchanged there is read as it is.
        others = [each for each in names if segments[each][0].startswith(STREAMS)]
        kind = self.random.choice(["lost", "shorter", "exchanged"])
        if kind == "exchanged" and len(others) > 1:
            name, other = self.random.sample(others, 2)
            chunks[name], chunks[other] = chunks[other], chunks[name]
            for each in (name, other):
                self.harmed.add(segments[each][0].partition("#transaction")[0])
        elif kind == "lost":
            del chunks[name]
        else:
            del chunks[name][self.random.randrange(len(chunks[name])) :]
        self.note(f"chunk {kind}")

    def harm_metadata(self) -> None:
        """Lose a chunk of the metadata of chunks, its end, or a bit of it."""
        chunks = self.tiers.chunks.contents
        names = sorted(each for each in chunks if each.startswith("_system/chunks-"))
        if not names:
            return
        name = self.random.choice(names)
        self.may_doubt |= "$claim-" in name
        kind = self.random.choice(["lost", "shorter", "flipped"])
        if kind == "lost" or not chunks[name]:
            del chunks[name]
        elif kind == "shorter":
            del chunks[name][self.random.randrange(len(chunks[name])) :]
        else:
            chunks[name][self.random.randrange(len(chunks[name]))] ^= 1
        self.note(f"metadata {kind}: {name.partition('$')[2].partition('-')[0]}")

    def recover(self, journal: str) -> RecoveryPlan:
        """Run the recovery on real files, and a second one, which has nothing to do."""
        directory = self.path / "journal-0"
        if journal == "lost" and self.random.random() < 0.5:
            shutil.rmtree(directory)
        else:
            for file in directory.glob("*.journal"):
                file.unlink()
            for name in self.tiers.disk.list_files():
                (directory / name).write_bytes(self.tiers.disk.content(name))
            self.identity_path.write_bytes(self.tiers.identity)
        plans: list[RecoveryPlan] = []

        async def main() -> None:
            for _ in range(2):
                async with open_recovery(self.config, given=self.tiers.chunks) as recovery:
                    plan = await recovery.plan(find_required=lambda _: self.required())
                    plans.append(plan)
                    if not plan.problems:
                        return
                    if len(plans) == 2:
                        raise RecoveriesError(f"it is to be recovered again: {plan.problems}")
                    told = [str(each) for each in plan.findings]
                    await recovery.run(plan)
                    if told != [str(each) for each in plan.findings]:
                        raise RecoveriesError(f"planned was {told}, done {plan.findings}")

        open_in_place = partial(
            open_journal,
            runner=InlineRunner(lambda _: 0.0),
            run_blocking=run_in_place,
            new_salt=lambda: self.random.getrandbits(32),
        )
        # By a thread, the journal would be written in batches of any size.
        with (
            patch("segstore.repair.recover.boot_id", lambda: BOOT_ID),
            patch("segstore.repair.recover.open_journal", open_in_place),
        ):
            trio.run(main)
        for backup in self.path.glob("before-recover-*"):
            shutil.rmtree(backup)
        disk = SimulatedDisk()
        for file in sorted(directory.glob("*.journal")):
            disk.create_file(file.name).write_durably([file.read_bytes()], 0)
        disk.sync_directory()
        self.tiers.disk, self.tiers.identity = disk, self.identity_path.read_bytes()
        return plans[0]

    def required(self) -> Required:
        """Return what a controller knows: the heads of the streams."""
        segments = self.tiers.truth.segments.items()
        return Required([RequiredSegment(name, each.head, False) for name, each in segments])

    # ---- After a recovery ------------------------------------------------------------------------

    async def compare(
        self,
        container: SegmentContainer,
        tables: TableSegments,
        plan: RecoveryPlan,
        before: Tiers,
        journal: str,
    ) -> None:
        """Compare the store with what was provable before the recovery."""
        self.tiers.truth = copy.deepcopy(before.truth)
        for name in STREAMS:
            await self.compare_segment(container, name, plan, journal)
        await self.compare_table(tables, plan, journal)

    async def compare_segment(
        self, container: SegmentContainer, name: str, plan: RecoveryPlan, journal: str
    ) -> None:
        segment = self.tiers.truth.segments[name]
        info = container.segment_info(name)
        if info.length < segment.head:
            raise RecoveriesError(
                f"{name} is {info.start_offset}..{info.length}: its head is at {segment.head}"
            )
        if journal == "whole" and info.length < len(segment.data):
            raise RecoveriesError(f"{name} ends at {info.length}, not at {len(segment.data)}")
        readable = bytearray(info.length)
        offset = info.start_offset
        while offset < info.length:
            try:
                data = (await container.read(name, offset=offset, length_max=64 * KIB)).data
            except BytesLostError as error:
                offset = error.lost_end
                continue
            except ChunkDamagedError:
                if name not in self.harmed:
                    raise
                break
            if name in self.harmed:
                break
            if data != segment.data[offset : offset + len(data)]:
                raise RecoveriesError(f"{name} has other bytes at {offset} than were written")
            readable[offset : offset + len(data)] = b"\1" * len(data)
            offset += len(data)
        lost = [
            (each.offset, each.offset + each.length)
            for each in plan.findings
            if each.what == "lost" and each.segment == name
        ]
        for begin, end in segment.events:
            if begin < segment.head or name in self.harmed:
                continue
            is_there = info.start_offset <= begin and end <= info.length
            is_there = is_there and all(readable[begin:end])
            if not is_there and self.proof.has(name, begin, bytes(segment.data[begin:end])):
                raise RecoveriesError(f"{name}: the event at {begin} was there and is lost")
            told = [*lost, *self.told(name)]
            was_told = any(start < end and begin < stop for start, stop in told)
            if not is_there and journal == "whole" and not was_told:
                raise RecoveriesError(f"{name}: nobody tells that the event at {begin} is lost")
        segment.head = max(segment.head, info.start_offset)
        self.lost.setdefault(name, []).extend(lost)
        self.note("lost" if lost else "kept whole")
        if info.length < len(segment.data):
            del segment.data[info.length :]
            segment.events = [each for each in segment.events if each[1] <= info.length]
            self.lost[name] = [each for each in self.lost[name] if each[1] <= info.length]
        elif name in self.harmed:
            segment.data += bytes(info.length - len(segment.data))
        elif info.length > len(segment.data):
            raise RecoveriesError(f"{name} ends at {info.length}, and never did")

    def told(self, name: str) -> list[tuple[int, int]]:
        """Return what earlier recoveries have told of a segment."""
        return self.lost.get(name, [])

    async def compare_table(self, tables: TableSegments, plan: RecoveryPlan, journal: str) -> None:
        truth = self.tiers.truth
        keys = sorted(truth.values)
        found = await tables.read(TABLE, keys) if keys else []
        has_losses = any(each.segment == TABLE and each.what == "lost" for each in plan.findings)
        for key, entry in zip(keys, found, strict=True):
            values = truth.values[key]
            value = bytes(entry.value) if entry.key.version >= 0 else b""
            if value != values[-1]:
                if values[-1] and self.proof.has_entry(key, values[-1]):
                    raise RecoveriesError(f"the table's entry {values[-1]!r} was there and is lost")
                if journal == "whole" and not has_losses:
                    raise RecoveriesError(f"nobody tells that {values[-1]!r} is lost")
                if value and value not in values:
                    raise RecoveriesError(f"the table has {value!r} for {key!r}: nobody wrote it")
                values.append(value)

    # ---- All of it -------------------------------------------------------------------------------

    def run(self) -> None:
        """Run lives, with a loss and a recovery between them."""
        self.proof = Proof(b"", {})
        self.lost: dict[str, list[tuple[int, int]]] = {}
        self.live(None, None, journal="whole")
        for _ in range(ROUNDS):
            if self.random.random() < 0.7:
                self.backups.append(self.tiers.copied())
                self.live(None, None, journal="whole")
            truth = copy.deepcopy(self.tiers.truth)
            journal = self.harm()
            if journal != "damaged":
                self.proof = trio.run(self.prove)
            else:
                self.proof = Proof(b"", {})
            before = Tiers(self.tiers.disk, self.tiers.chunks, truth, self.tiers.identity)
            plan = self.recover(journal)
            if plan.problems:
                self.note("recovered")
            self.backups.clear()
            self.live(plan, before, journal=journal)


def simulate_recoveries(seed: int, folder: Path) -> tuple[Counter[str], int]:
    """Run one seed; what happened how often, and the trace's hash. Raises ``RecoveriesError``."""
    world = World(seed, folder)
    with patch("os.fsync", lambda _: None), logs_dropped():
        try:
            world.run()
        except (SegmentStoreError, KeyError, AssertionError) as error:
            if isinstance(error, RecoveriesError):
                raise
            raise RecoveriesError(f"{type(error).__name__}: {error}") from error
    return world.counts, world.trace.hash
