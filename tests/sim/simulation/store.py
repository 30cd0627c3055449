"""The store that is simulated: its containers, in one life after another on the same tiers.

Owns: ``Store``: how a life begins, how it ends, and what survives it.

Invariants:
1. A life ends by a clean stop, a kill (what the kernel holds survives), a power cut (what was not
   synced may not), or a disk that fails. A kill comes before any step of any task, whatever the
   life is doing: recovering, serving, draining.
2. From the kill on nothing that the dead life still does reaches the disk, tier 2 or a client.
3. Before clients come back the recovered state is compared with the model, byte for byte, and so
   is what lies in tier 2.
4. All containers are on one journal. Where there are several, each may fail alone meanwhile, and a
   record of one that is damaged keeps only this one offline, until the damage is undone.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Protocol

import trio
from wall_clocks import WallClock

from _fast.btree.tree import PageCache
from _fast.cache.streaming_cache import StreamingCache
from segstore.api import SegmentContainer
from segstore.cache.manager import CacheManager
from segstore.errors import (
    DataLogCorruptError,
    DataLogError,
    StorageError,
    StorageFullError,
)
from segstore.tiers.api import ChunkStorage, DurableDataLogFactory
from segstore.tiers.journal import JournalSettings
from segstore.tiers.journal.runner import InlineRunner, WriterRunner
from segstore.tiers.memory import MemoryChunkStorage
from segstore.tiers.s3.objects import ObjectStore, RetryLimits
from segstore.tiers.s3.storage import S3Tier
from simulation.damage import Damage, damage_one_record
from simulation.host import Host, Life, Mishap
from simulation.journal_damage import JournalDamageError, try_damage
from simulation.model import Model
from simulation.network import Network, NetworkStream
from simulation.plan import KIB, Plan
from simulation.scheduler import Trace
from simulation.stored import CHECKERS_EPOCH, check_chunks, check_complete
from support.faults.faulty_chunks import Fault, FaultyChunkStorage
from support.simulated.simulated_disk import PowerCutError, SimulatedDisk
from support.simulated.simulated_journal import PipelinedRunner, open_simulated_journal
from support.simulated.simulated_objects import (
    LateRequests,
    ObjectFault,
    ObjectNetwork,
    SimulatedBucket,
)

JOURNAL_FILE_BYTES = 1280 * KIB
"""Little more than the longest data frame takes."""
LARGE_FILE_BYTES = 8 * 1024 * KIB
SHARED_FILES = 5
"""Number of journal files for which a disk has room that tier 2 shares: one in use, one more, and
as much for what they hold."""
"""Length of the journal's files where space is short: what waits fits into the last one."""
DAMAGED_SECONDS_MAX = 100.0
"""A container that is offline keeps files that the others may have no room without."""
JOURNAL_DAMAGE_RATE = 0.5
"""Share of the lives after which a copy of the journal is damaged."""
NO_MEMORY_RATE = 0.005
BUFFERS_STEPS = 8
"""Between looks at what connections have in buffers."""
OBJECT_LIMITS = RetryLimits(attempts_max=3, retry_seconds_max=5.0)


class Faults(Protocol):
    """The defects that a test plants into the store, to see whether they are found."""

    def disk(self) -> SimulatedDisk:
        """Return the journal's disk."""
        ...

    def logs(self, factory: DurableDataLogFactory) -> DurableDataLogFactory:
        """Return the logs between the container and the journal."""
        ...

    def chunks(self, storage: ChunkStorage) -> ChunkStorage:
        """Return the storage between the container and tier 2."""
        ...

    def container(self, container: SegmentContainer) -> SegmentContainer:
        """Return the container between the clients and the real container."""
        ...

    def stream(self, stream: NetworkStream) -> trio.abc.HalfCloseableStream:
        """Return the stream between the server and a connection."""
        ...


class NoFaults:
    """The faults of a run in which nothing is planted."""

    def disk(self) -> SimulatedDisk:
        """Return the journal's disk."""
        return SimulatedDisk()

    def logs(self, factory: DurableDataLogFactory) -> DurableDataLogFactory:
        """Return the journal itself."""
        return factory

    def chunks(self, storage: ChunkStorage) -> ChunkStorage:
        """Return tier 2 itself."""
        return storage

    def container(self, container: SegmentContainer) -> SegmentContainer:
        """Return the container itself."""
        return container

    def stream(self, stream: NetworkStream) -> trio.abc.HalfCloseableStream:
        """Return the connection itself."""
        return stream


class Store:
    """The store under test; see the module. ``finished`` is set when the clients are done."""

    def __init__(
        self, plan: Plan, random: Random, trace: Trace, planted: Faults, clocks: Random
    ) -> None:
        self._plan = plan
        self._random = random
        self.trace = trace
        self.planted = planted
        self._disk = planted.disk()
        self._notes = SimulatedDisk()
        self.memory = MemoryChunkStorage()
        self._bucket = SimulatedBucket()
        self._late = LateRequests(random)
        self._requests = ObjectNetwork(self._late, random)
        self._chunks = FaultyChunkStorage(self.memory)
        self._scope = trio.CancelScope()
        self._steps_left: int | None = None
        self._mishaps: list[tuple[int, Host, Mishap]] = []
        self._damage: Damage | None = None
        self.dead = False
        self.disk_fails = False
        self._disk_fault = ("", 0, "")
        self._died_at = 0.0
        self._power_is_cut = False
        self._outage: tuple[float, float, str | None] = (0.0, 0.0, None)
        self._calm = trio.Event()
        self.finished = trio.Event()
        self.stopped = trio.Event()
        self.life_count = 0
        self.first_step = 0
        """Number of the first step of the present life."""
        self.fault_counts: Counter[str] = Counter()
        """Count of the faults of each kind that the store has met."""
        self.clock = WallClock(clocks, self._note_clock)
        self.network = Network(plan, random, lambda: self.calm, self.fault_counts)
        self.hosts: list[Host] = []
        file_bytes = LARGE_FILE_BYTES if plan.tier_2_bytes else JOURNAL_FILE_BYTES
        self.settings = JournalSettings(
            file_bytes=file_bytes,
            journal_bytes_max=plan.journal_files_max * file_bytes,
            batch_bytes_max=2048 * KIB,
            files_spare_max=2,
            shares_disk=plan.shares_disk,
        )
        if plan.tier_2_bytes:
            self._bound_space()

    def _bound_space(self) -> None:
        """Give both tiers as much space as the plan says."""
        plan, memory = self._plan, self.memory
        if plan.with_objects:
            self._bucket.capacity_bytes = plan.tier_2_bytes
        else:
            memory.capacity_bytes = plan.tier_2_bytes
        if plan.shares_disk:
            memory.capacity_bytes = plan.tier_2_bytes + SHARED_FILES * self.settings.file_bytes
            memory.other_bytes = lambda: self._disk.used_bytes
            self._disk.capacity_bytes = memory.capacity_bytes
            self._disk.other_bytes = lambda: memory.used_bytes
        elif plan.disk_files:
            self._disk.capacity_bytes = plan.disk_files * self.settings.file_bytes

    def add_space(self) -> None:
        """Give both tiers all the space that is wanted, as an operator does."""
        self._bucket.capacity_bytes = self.memory.capacity_bytes = None
        self._disk.capacity_bytes = None

    @property
    def _refused_count(self) -> int:
        return self.memory.refused_count + self._bucket.refused_count

    @property
    def used_share(self) -> float:
        """Return how much of the space of tier 2 is used; 0 if it has all that is wanted."""
        bucket, memory = self._bucket, self.memory
        if bucket.capacity_bytes is not None:
            return bucket.used_bytes / bucket.capacity_bytes
        if memory.capacity_bytes is None:
            return 0.0
        return (memory.used_bytes + memory.other_bytes()) / memory.capacity_bytes

    def _note_clock(self, what: str) -> None:
        self.fault_counts["wall clock set"] += 1
        self.trace(what)

    def add_host(self, model: Model) -> Host:
        """Add another container, whose segments must be what ``model`` says."""
        host = Host(len(self.hosts), self, self._plan, self._random, model)
        self.hosts.append(host)
        return host

    @property
    def calm(self) -> bool:
        """Return whether the faults are over."""
        return self._calm.is_set()

    def calm_down(self) -> None:
        """Stop all faults from now on."""
        self._calm.set()

    def overdue(self, *, seconds: float) -> list[str]:
        """Return calls that have waited too long for their answers, or a life that does not end."""
        if self.dead and trio.current_time() - self._died_at > seconds:
            return [f"life {self.life_count} does not end, although it is cancelled"]
        return [each for host in self.hosts for each in host.overdue(seconds=seconds)]

    # ---- Death -----------------------------------------------------------------------------------

    def on_step(self) -> None:
        """Kill the store if the moment has come; called before every step of every task."""
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left < 0:
                self._kill("killed")
        if self.trace.step_count % BUFFERS_STEPS == 0 and not self.dead:
            for host in self.hosts:
                host.check_buffers()
        if self._mishaps:
            steps, host, mishap = self._mishaps[-1]
            self._mishaps[-1] = (steps - 1, host, mishap)
            if steps <= 0:
                self._mishaps.pop()
                self.fault_counts[f"container {mishap.name.lower()}"] += host.meet(mishap)

    def _kill(self, how: str) -> None:
        """End the life here and now; what follows in it reaches nobody."""
        self._steps_left = None
        self.dead = True
        self._died_at = trio.current_time()
        self.fault_counts[how] += 1
        self.trace(f"{how}, {self._disk.sync_count} syncs")
        self._count_disk_fault()
        disk, self._disk = self._disk, self._disk.after_kill()
        notes, self._notes = self._notes, self._notes.after_kill()
        disk.power_cut_at = notes.power_cut_at = 0
        self._abandon_tier_2()
        self.network.server_dies()
        self._disconnect()
        self._scope.cancel()

    def _disconnect(self) -> None:
        for host in self.hosts:
            host.disconnect()

    async def _try_damage(self) -> None:
        """See that damage to a file of the journal is told, on a copy of it."""
        if self._random.random() < JOURNAL_DAMAGE_RATE:
            try:
                found = await try_damage(self._disk, self.settings, self._random)
            except JournalDamageError as error:
                raise self._violated(str(error)) from error
            self.fault_counts[found] += bool(found)

    # ---- Lives -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run life after life, until everything is done."""
        while not self.finished.is_set():
            self.life_count += 1
            if self.life_count > self._plan.lives:
                self.calm_down()
            await self._live_and_die()
            with trio.CancelScope(shield=True):
                await self._chunks.settle(self._random)
                await check_chunks(self._stored(), self.hosts)
                await self._try_damage()
        self.stopped.set()

    async def check_everything(self) -> None:
        """Check that after a clean stop without faults tier 2 has all, and the next life finds
        all."""
        for _ in range(2):
            self.life_count += 1
            await self._live_and_die()
            self._late.deliver(everything=True)
            stored = self._stored()
            await check_chunks(stored, self.hosts)
            # A put that arrives after its chunk was deleted leaves an object that nobody looks for.
            with_strangers = self._late.delivered_count > 0
            await check_complete(stored, self.hosts, with_strangers=with_strangers)

    async def _live_and_die(self) -> None:
        # What tier 2 refused before the calm came may be told later.
        was_calm = self.calm
        self._prepare_life()
        refused_count = self._refused_count
        self.first_step = self.trace.step_count
        self.trace(f"life {self.life_count} begins")
        try:
            with self._scope:
                await self._live()
        except* PowerCutError:
            assert self.dead
        except* DataLogCorruptError as group:
            # A dead life's own disk is gone: what it finds there means nothing.
            if not self.dead:
                raise self._violated(f"tier 1 is damaged: {group.exceptions}") from group
        except* DataLogError as group:
            if not self.dead and not self.disk_fails:
                raise self._violated(f"tier 1 failed: {group.exceptions}") from group
        except* StorageError as group:
            if not self.dead and was_calm and not self._add_space_after_power_cut(group):
                raise self._violated(f"tier 2 failed: {group.exceptions}") from group
        finally:
            self._steps_left = None
            self._mishaps.clear()
            self.network.server_dies()
            self._disconnect()
            self.fault_counts["tier 2 has no space"] += self._refused_count - refused_count
            if not self.dead:
                self._abandon_tier_2()
                self._count_disk_fault()
                self._disk = self._disk.after_kill()
                self._notes = self._notes.after_kill()
        self.trace(f"life {self.life_count} is over, {'dead' if self.dead else 'stopped'}")
        if self._damage is not None:
            self._damage.undo(self._disk)
            self._damage = None
        if self._power_is_cut:
            flip_bits = self._plan.flip_bits
            self.fault_counts["power cut, bits flip" if flip_bits else "power cut"] += 1
            self._disk = self._disk.after_power_cut(self._random, flip_bits=flip_bits)
            self._notes = self._notes.after_power_cut(self._random, flip_bits=flip_bits)

    def _add_space_after_power_cut(self, group: BaseExceptionGroup[StorageError]) -> bool:
        """Add space if that is all that a container needs to open; return whether it was.

        After a power cut a recovery writes again what is in doubt of inactive segments. It cannot
        put that off: in a full tier 2 nothing can be deleted before the container is open.
        """
        cuts = self.fault_counts["power cut"] + self.fault_counts["power cut, bits flip"]
        rest = group.split(StorageFullError)[1]
        if rest is not None or not cuts or not self.used_share:
            return False
        self.fault_counts["space added for a recovery"] += 1
        self.add_space()
        return True

    def _violated(self, message: str) -> BaseException:
        return self.hosts[0].model.violated(message)

    def _prepare_life(self) -> None:
        random, plan, disk = self._random, self._plan, self._disk
        self._scope = trio.CancelScope()
        self.dead = self.disk_fails = self._power_is_cut = False
        self._chunks = FaultyChunkStorage(
            self.planted.chunks(self.memory),
            next_fault=self._next_chunk_fault,
            next_delay=self._next_delay,
            next_reply_delay=self._next_delay,
        )
        self._requests = ObjectNetwork(
            self._late, random, next_fault=self._next_object_fault, next_delay=self._next_delay
        )
        for host in self.hosts:
            host.begin_life()
        if self.calm:
            return
        steps = int(random.expovariate(1 / plan.life_steps)) + 1
        if random.random() < plan.disk_fault_rate:
            self._prepare_disk_fault(steps)
        ending = random.randrange(10)
        self._power_is_cut = random.random() < 0.6
        if ending < 4:
            self._steps_left = steps
        elif ending < 8:
            disk.power_cut_at = disk.step_count + 1 + steps // 20
            disk.on_power_cut = lambda: self._kill("killed in the middle of a disk's call")
        if plan.containers > 1:
            self._prepare_mishaps()

    def _prepare_disk_fault(self, steps: int) -> None:
        """Prepare some failures in a row of the journal's disk: at writes, syncs, or opening
        files."""
        random, disk = self._random, self._disk
        self.disk_fails = True
        # Most steps are writes.
        kind = random.choices(["sync", "write", "open"], [5, 2, 3])[0]
        if kind == "open":
            code = random.choice([errno.EMFILE, errno.ENFILE, errno.ENOMEM])
            first = disk.open_count + 1 + random.randrange(len(disk.list_files()) + 4)
            disk.open_errors = dict.fromkeys(range(first, first + random.choice([1, 3])), code)
        else:
            errors = disk.sync_errors if kind == "sync" else disk.write_errors
            code = random.choice([errno.EIO, errno.ENOSPC, errno.ENOMEM])
            first = disk.step_count + 1 + random.randrange(min(100, 2 + steps // 20))
            errors |= dict.fromkeys(range(first, first + random.choice([2, 20])), code)
        self._disk_fault = (kind, first, f"disk's {kind} fails, {errno.errorcode[code]}")

    def _count_disk_fault(self) -> None:
        kind, first, what = self._disk_fault
        count = self._disk.open_count if kind == "open" else self._disk.step_count
        if self.disk_fails and count >= first:
            self.fault_counts[what] += 1

    def _prepare_mishaps(self) -> None:
        """Choose what happens to single containers in this life."""
        random, plan = self._random, self._plan
        if random.random() < plan.damage_rate and not self._disk.open_errors:
            self._damage = damage_one_record(self._disk, self._notes, random)
        if self._damage is not None:
            # Who opens its log again in this life reads the damaged file, without its note.
            host = self.hosts[self._damage.container_id]
            host.damaged = True
            self.fault_counts["damaged record"] += 1
            self.trace(f"a record of container {host.number} is damaged")
            return
        for _ in range(random.choice([0, 2, 4])):
            steps = int(random.expovariate(1 / plan.life_steps))
            host, mishap = random.choice(self.hosts), random.choice(list(Mishap))
            self._mishaps.append((steps, host, mishap))

    async def _live(self) -> None:
        plan = self._plan
        cache = StreamingCache(plan.cache_bytes)
        runner: WriterRunner = InlineRunner(self._disk_latency)
        if plan.containers > 1:
            runner = PipelinedRunner(self._disk_latency)
        async with open_simulated_journal(
            self._disk,
            self.settings,
            random=self._random,
            runner=runner,
            notes=self._notes if plan.containers > 1 else None,
        ) as journal:
            life = Life(journal, CacheManager(cache), PageCache(plan.page_cache_bytes))
            async with trio.open_nursery() as nursery:
                for host in self.hosts:
                    nursery.start_soon(host.keep_online, life)
                for host in self.hosts:
                    await host.tried.wait()
                await self._wait_for_end()
                life.ending.set()
            if cache.used_bytes > cache.capacity_bytes:
                raise self._violated(f"the cache takes {cache.used_bytes} bytes")
        if cache.stored_bytes and not self.dead:
            raise self._violated(f"closed containers left {cache.stored_bytes} bytes")

    async def _wait_for_end(self) -> None:
        seconds = float("inf")
        if self._steps_left is None and self._disk.power_cut_at is None:
            seconds = self._plan.pause_seconds * self._random.randrange(1, 100) + 0.01
        if self._damage is not None:
            seconds = min(seconds, DAMAGED_SECONDS_MAX)
        with trio.move_on_after(seconds):
            await self._calm.wait()
        if self.calm and self._damage is None:
            self._steps_left = self._disk.power_cut_at = None
            self._mishaps.clear()
            await self.finished.wait()

    # ---- Tiers -----------------------------------------------------------------------------------

    def _disk_latency(self, length: int) -> float:
        seconds = self._plan.disk_seconds
        return self._random.expovariate(1 / seconds) if seconds else 0.0

    def _next_delay(self, call: str) -> float:
        seconds = self._plan.tier_2_seconds
        if self.calm or not seconds:
            return 0.0
        slow = 20 if self._random.random() < 0.02 else 1
        return self._random.expovariate(1 / seconds) * slow

    def _next_fault(self, call: str) -> Fault:
        if self.calm:
            return Fault.NONE
        begin, end, kind = self._outage
        now = trio.current_time()
        if begin <= now < end and kind in (None, call):
            return Fault.REFUSED
        if now >= end and self._plan.tier_2_outage_rate:
            length = self._random.expovariate(1 / 20)
            gap = length * (1 - self._plan.tier_2_outage_rate) / self._plan.tier_2_outage_rate
            kind = self._random.choice([None, None, "write", "read", "list_chunks", "delete"])
            self._outage = (now + gap, now + gap + length, kind)
        if self._random.random() < self._plan.tier_2_fault_rate:
            return self._random.choice([Fault.REFUSED, Fault.REPLY_LOST, Fault.PARTIAL])
        return Fault.NONE

    def _next_chunk_fault(self, call: str) -> Fault:
        fault = self._next_fault(call)
        self._note_tier_2(fault)
        return fault

    def _next_object_fault(self) -> ObjectFault:
        fault, found = self._next_fault("request"), ObjectFault.NONE
        if fault is Fault.REFUSED:
            found = self._random.choice([ObjectFault.NOT_SENT, ObjectFault.SLOW_DOWN])
        elif fault is not Fault.NONE:
            found = self._random.choice([ObjectFault.REPLY_LOST, ObjectFault.LATE])
        self._note_tier_2(found)
        if fault is Fault.NONE and not self.calm and self._random.random() < NO_MEMORY_RATE:
            self.fault_counts["object request finds no memory"] += 1
            raise MemoryError("injected: no memory for a request")
        return found

    def _note_tier_2(self, fault: Fault | ObjectFault) -> None:
        if fault.name != "NONE":
            kind = "object" if isinstance(fault, ObjectFault) else "chunk"
            self.fault_counts[f"{kind} request {fault.name.lower()}"] += 1

    def tier_2(self, epoch: Callable[[], int]) -> ChunkStorage:
        """Return the chunks for an owner in this life."""
        return self._tier_2(self._requests, epoch)

    def _tier_2(self, requests: ObjectNetwork, epoch: Callable[[], int]) -> ChunkStorage:
        if not self._plan.with_objects:
            return self._chunks
        objects = ObjectStore(
            self._bucket,
            bucket="bucket",
            prefix="store/",
            random=self._random.random,
            limits=OBJECT_LIMITS,
            page_objects_max=7,
            run_request=requests.run,
        )
        return S3Tier(objects).owned_by(epoch)

    def _abandon_tier_2(self) -> None:
        self._chunks.abandon()
        self._requests.abandon()

    def _stored(self) -> ChunkStorage:
        """Return the chunks for checks, which only read."""
        if not self._plan.with_objects:
            return self.memory
        return self._tier_2(ObjectNetwork(self._late, self._random), lambda: CHECKERS_EPOCH)
