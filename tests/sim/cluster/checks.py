"""Checks the rules that a cluster keeps at every moment, from outside of all its processes.

Owns: ``Checks``, which is told of each log that is opened, each entry that is acknowledged, each
chunk that is deleted, each answer of an owner, and each change in ZooKeeper; ``WatchedLogs``,
``WatchedToken``, ``WatchedSegments`` and ``WatchedChunks``, which tell it.

1. An entry is acknowledged when an ack quorum of bookies has it, and not before.
2. Whoever opens a log has all entries behind its truncation that were acknowledged to the owners
   before, or will be.
3. The map is written by who leads, gives each container to one host, and moves as few as it can.
4. A host registers in a session in which it has looked at the map.
5. Nobody deletes a chunk that the container's owner needs: who opened the log last.
6. Once an owner may answer, no earlier owner sends an answer that it only knows since then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from bookkeeper_client.metadata import decode_metadata, ledger_path
from cluster.bookies import SimulatedBookie
from cluster.processes import current_process
from cluster.zookeeper import Request, Session, SimulatedZooKeeper
from pravega_cluster.nodes import ClusterPaths
from pravega_cluster.records import ContainerMap, Host, decode_map
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.ownership.token import OwnerToken
from segstore.tiers.api import Buffer, LogAddress, OnDurable, OwnerProof
from segstore.tiers.bookkeeper import BookKeeperLogFactory
from segstore.tiers.bookkeeper.data_log import BookKeeperDataLog
from segstore.tiers.bookkeeper.log_metadata import ENTRIES_MAX, ENTRY_BITS
from segstore.tiers.memory import MemoryChunkStorage
from zookeeper_client.api import NoNodeError

LOCK = "lock-"


class ViolationError(Exception):
    """A rule that must always be true is broken."""


class Checks:
    """The checks of a run; see the module."""

    def __init__(
        self,
        paths: ClusterPaths,
        ledgers_root: str,
        zookeeper: SimulatedZooKeeper,
        bookies: Sequence[SimulatedBookie],
        container_count: int,
        violated: Callable[[BaseException], None],
        counts: Counter[str],
        note: Callable[[str], None],
    ) -> None:
        self.map: ContainerMap = {}
        """As it was written last."""
        self._paths = paths
        self._ledgers_root = ledgers_root
        self._zookeeper = zookeeper
        self._bookies = bookies
        self._container_count = container_count
        self._violated = violated
        self._counts = counts
        self._note = note
        self._acknowledged: dict[int, set[int]] = {}
        """The positions of entries, by container."""
        self._latest: dict[int, BookKeeperDataLog] = {}
        self._ack_quorums: dict[int, int] = {}
        self._segments: dict[int, ChunkedSegmentStorage] = {}
        """The segments of the latest owner, by container."""
        self._alone: dict[int, tuple[int, float]] = {}
        """The epoch of the latest owner that may answer, and since when, by container."""

    def violate(self, what: str) -> None:
        """Tell that something does not hold."""
        self._violated(ViolationError(what))

    # ---- Logs ------------------------------------------------------------------------------------

    def note_opened(self, container: int, log: BookKeeperDataLog) -> None:
        """Check a log that was opened: it has all that was acknowledged."""
        self._counts["log opened"] += 1
        self._note(f"log {container} is opened in epoch {log.epoch}")
        first = log._first_position
        positions = self._acknowledged.setdefault(container, set())
        positions -= {each for each in positions if each < first}
        for position in sorted(positions):
            self._check_has(container, log, position)
        latest = self._latest.get(container)
        if latest is None or latest.epoch < log.epoch:
            self._latest[container] = log

    def note_acknowledged(
        self, container: int, log: BookKeeperDataLog, ledger_id: int, position: int, data: bytes
    ) -> None:
        """Check an entry that was acknowledged to its writer: it must be durable."""
        self._counts["entry acknowledged"] += 1
        self._check_quorum(ledger_id, position % ENTRIES_MAX, data)
        self._acknowledged.setdefault(container, set()).add(position)
        latest = self._latest.get(container)
        if latest is not None and latest.epoch > log.epoch:
            self._counts["entry acknowledged to an earlier owner"] += 1
            self._check_has(container, latest, position)

    def note_truncated(self) -> None:
        """Count a log that was truncated."""
        self._counts["log truncated"] += 1

    def _check_has(self, container: int, log: BookKeeperDataLog, position: int) -> None:
        """Check that the log found an entry of an earlier owner when it was opened."""
        sequence, entry_id = position >> ENTRY_BITS, position % ENTRIES_MAX
        if position < log._first_position or sequence >= log.opened_sequence:
            return
        ledger = log.found_ledgers.get(sequence)
        if ledger is None or ledger.last_entry_id < entry_id:
            self.violate(
                f"entry {entry_id} of ledger {sequence} of log {container} was acknowledged, and"
                f" the owner with epoch {log.epoch} does not have it"
            )

    def _check_quorum(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        if ledger_id not in self._ack_quorums:
            try:
                node = self._zookeeper.tree.find(f"{self._ledgers_root}/{ledger_path(ledger_id)}")
            except NoNodeError:
                return
            self._ack_quorums[ledger_id] = decode_metadata(node.data).quorums.ack
        copies = [bookie.entry(ledger_id, entry_id) for bookie in self._bookies]
        count = sum(copy is not None and copy.endswith(data) for copy in copies)
        if count < self._ack_quorums[ledger_id]:
            self.violate(f"entry {entry_id} of ledger {ledger_id} is on {count} bookies only")

    def narrow_logs(self, bookie_count: int) -> list[int]:
        """Return the containers whose current ledger has too few bookies."""
        return [
            container
            for container, log in sorted(self._latest.items())
            if log._ledger.quorums.ensemble < bookie_count
        ]

    # ---- Answers ---------------------------------------------------------------------------------

    def note_alone(self, container: int, epoch: int) -> None:
        """Note that an owner may answer from now on."""
        latest = self._alone.get(container)
        if latest is None or latest[0] < epoch:
            self._alone[container] = epoch, trio.current_time()

    def note_answer(self, container: int, epoch: int, known_at: float) -> None:
        """Check an answer that an owner sends now, and has known since ``known_at``."""
        self._counts["answer"] += 1
        latest, since = self._alone.get(container, (0, 0.0))
        if latest > epoch and since <= known_at:
            self.violate(
                f"container {container} is answered for under epoch {epoch},"
                f" {known_at - since:.3f} s after the owner with epoch {latest} may answer"
            )

    # ---- Tier 2 ----------------------------------------------------------------------------------

    def note_segments(self, container: int, segments: ChunkedSegmentStorage) -> None:
        """Note that the segments of a container are used, under the epoch of its log."""
        latest = self._segments.get(container)
        if latest is None or latest.owner_epoch() <= segments.owner_epoch():
            self._segments[container] = segments

    def note_deleted(self, chunk: str) -> None:
        """Check that a deleted chunk is not needed."""
        self._counts["chunk deleted"] += 1
        segment = chunk.rpartition("$")[0]
        for container, segments in self._segments.items():
            journal = segments.journal
            record = journal.metadata.get(segment) if journal.opened.is_set() else None
            if record is not None and any(each.name == chunk for each in record.chunks):
                self.violate(f"{chunk} is deleted, and container {container} needs it")

    # ---- ZooKeeper -------------------------------------------------------------------------------

    def note_write(self, session: Session, request: Request) -> None:
        """Check a change of a node."""
        if request.path == self._paths.container_map and request.kind in ("create", "set"):
            self._check_leads(session)
            self._check_map(decode_map(request.data))
        elif request.kind == "create" and request.path.startswith(f"{self._paths.hosts}/"):
            self._note(f"{session.owner} is registered in session {session.number}")
            if self._paths.container_map not in session.read:
                self.violate(f"{session.owner} registers before it has looked at the map")

    def _check_leads(self, session: Session) -> None:
        try:
            queue = self._zookeeper.tree.find(self._paths.leader).children
        except NoNodeError:
            queue = {}
        first = min(queue, key=lambda name: int(name.rpartition(LOCK)[2]), default=None)
        if first is None or queue[first].owner is not session.memory:
            self.violate(f"the map is written by {session.owner}, which does not lead")

    def _check_map(self, new: dict[Host, frozenset[int]]) -> None:
        old, self.map = self.map, new
        self._counts["map written"] += 1
        self._note(f"map: { {host.ip: sorted(given) for host, given in sorted(new.items())} }")
        given = sorted(number for numbers in new.values() for number in numbers)
        if given != list(range(self._container_count)):
            self.violate(f"the map gives containers {given}")
        kept = {host: old.get(host, frozenset()) for host in new}
        share, larger = divmod(self._container_count, len(new))
        sizes = sorted(map(len, kept.values()), reverse=True)
        needed = self._container_count - sum(sizes)
        needed += sum(max(0, size - share - (place < larger)) for place, size in enumerate(sizes))
        moved = sum(len(new[host] - kept[host]) for host in new)
        self._counts["container moved"] += moved
        if moved > needed:
            self.violate(f"{moved} containers move where {needed} would do: {old} to {new}")


class WatchedLogs(BookKeeperLogFactory):
    """An opener of logs that reports logs and their entries to the checks."""

    def __init__(self, checks: Checks, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._checks = checks

    async def open_log(self, container_id: int) -> BookKeeperDataLog:
        """See ``DurableDataLogFactory``."""
        log = await super().open_log(container_id)
        process, checks = current_process(), self._checks
        assert process is not None
        log.watched_container = container_id
        log.opened_sequence = log._sequence
        log.found_ledgers = dict(log._earlier)
        append = log.append_nowait

        def append_nowait(parts: Sequence[Buffer], on_durable: OnDurable) -> LogAddress:
            data = b"".join(parts)
            ledgers = {each.sequence: each.ledger_id for each in log._node.metadata.ledgers}

            def tell(error: Exception | None) -> None:
                if error is None and not process.is_dead:
                    ledger_id = ledgers[address.position >> ENTRY_BITS]
                    checks.note_acknowledged(container_id, log, ledger_id, address.position, data)
                on_durable(error)

            address = append(parts, tell)
            return address

        truncate = log.truncate

        async def truncate_and_count(address: LogAddress) -> None:
            await truncate(address)
            checks.note_truncated()

        log.append_nowait = append_nowait
        log.truncate = truncate_and_count
        if not process.is_dead:
            checks.note_opened(container_id, log)
        return log


class WatchedToken(OwnerToken):
    """An owner's token that reports what is answered with it."""

    def __init__(self, checks: Checks) -> None:
        super().__init__()
        self._checks = checks
        self._process = current_process()
        self._container = -1

    def open(self, epoch: int, proof: OwnerProof | None) -> None:
        """See ``OwnerToken``."""
        super().open(epoch, proof)
        assert isinstance(proof, BookKeeperDataLog)
        self._container = proof.watched_container

    async def wait_alone(self) -> None:
        """See ``OwnerToken``."""
        await super().wait_alone()
        self._checks.note_alone(self._container, self.epoch)

    @property
    def may_answer(self) -> bool:
        """See ``OwnerToken``."""
        may = super().may_answer
        if may:
            self._note_answer(trio.current_time())
        return may

    async def confirm(self, append: Callable[[], Awaitable[None]]) -> None:
        """See ``OwnerToken``."""
        known_at = trio.current_time()
        await super().confirm(append)
        self._note_answer(known_at)

    def _note_answer(self, known_at: float) -> None:
        if self._process is None or not self._process.is_dead:
            self._checks.note_answer(self._container, self.epoch, known_at)


class WatchedSegments(ChunkedSegmentStorage):
    """A container's segments in tier 2; its garbage is collected soon."""

    def __init__(
        self, checks: Checks, garbage_delay_seconds: float, *arguments: Any, **options: Any
    ) -> None:
        super().__init__(
            *arguments,
            **options,
            garbage_delay_seconds=garbage_delay_seconds,
            move_bytes_min=1000,
            snapshot_bytes_min=4096,
        )
        self.owner_epoch: Callable[[], int] = options["epoch"]
        self._checks = checks
        self._container = options["container_id"]

    async def run(self) -> None:
        """See ``SegmentStorage``: it is called when the log is open."""
        process = current_process()
        if process is not None and not process.is_dead:
            self._checks.note_segments(self._container, self)
        await super().run()


class WatchedChunks(MemoryChunkStorage):
    """Tier 2."""

    def __init__(self) -> None:
        super().__init__()
        self.note_deleted: Callable[[str], None] = lambda chunk: None

    async def delete(self, name: str) -> None:
        """See ``ChunkStorage``."""
        await super().delete(name)
        self.note_deleted(name)
