"""Some seeds of a cluster, and planted faults that seeds find; more by ``make sim-cluster``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from cluster.run import FailedSeedError, Simulation, simulate

from bookkeeper_client import client as bookkeeper_client
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.state_machines.recovery import LedgerRecovery
from bookkeeper_client.state_machines.writing import LedgerWriter
from bookkeeper_client.wire.entry_format import make_master_key
from bookkeeper_client.wire.protocol import LAST_ENTRY, Operation, encode_fencing_read, encode_read
from pravega_cluster import monitor
from pravega_cluster.latch import LeaderLatch
from pravega_cluster.nodes import VersionedMap, read_map
from segstore.chunks import garbage
from segstore.process.membership import Membership
from segstore.process.registry import ContainerRegistry
from segstore.tiers.bookkeeper.data_log import BookKeeperDataLog
from zookeeper_client.api import ZooKeeper

SEEDS = [4]
"""The other tests run the seeds before these."""
PLANTED_SEEDS = 60
"""Number of seeds, of which at least one must find a planted fault."""


def test_a_cluster_keeps_its_promises() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts += simulate(seed).counts
    # What the seeds are for does happen in them.
    assert counts["record acknowledged"] > 50 * len(SEEDS)
    assert counts["log opened"] > 5 * len(SEEDS)
    assert counts["log truncated"] > len(SEEDS)
    assert counts["chunk deleted"] > len(SEEDS)
    assert counts["answer"] > len(SEEDS)


@pytest.mark.proof
def test_a_seed_is_replayed_step_by_step() -> None:
    first, second = simulate(3), simulate(3)
    assert first.lines == second.lines
    assert (first.trace_hash, first.step_count) == (second.trace_hash, second.step_count)


# ---- Found by these seeds before they were mended ------------------------------------------------


@pytest.mark.proof
def test_a_store_looks_at_the_map_before_it_registers_in_its_second_session() -> None:
    for seed in (0, 1):
        simulate(seed)


@pytest.mark.proof
def test_a_container_ends_although_its_log_is_anothers_when_it_drains() -> None:
    simulate(2)


def test_a_store_that_waits_for_its_next_start_is_not_started_twice() -> None:
    simulate(10185)


@pytest.mark.proof
def test_bookies_that_have_forgotten_a_fence_acknowledge_nothing() -> None:
    simulate(10062)


# ---- Planted faults ------------------------------------------------------------------------------


def plant_unreachable_as_absent(patch: pytest.MonkeyPatch) -> None:
    """Make clients take a bookie that does not answer for one that lacks the entry."""
    real = LedgerRecovery._process_read

    def process(self: LedgerRecovery, index: int, entry: Any, *, is_absent: bool) -> None:
        real(self, index, entry, is_absent=entry is None)

    # Where one bookie without an entry proves that it was never acknowledged, and many are away.
    with_two = partial(simulate, replicas=(3, 2, 2))
    patch.setattr(LedgerRecovery, "_process_read", process)
    patch.setitem(globals(), "simulate", with_two)
    patch.setattr(Simulation, "_stop_bookie", Simulation._crash_bookie)
    patch.setattr(Simulation, "_reset_bookie", Simulation._crash_bookie)


def plant_acknowledged_below_quorum(patch: pytest.MonkeyPatch) -> None:
    """Make the writer wait for one bookie less."""
    real = LedgerWriter.__init__

    def begin(self: LedgerWriter, *arguments: Any) -> None:
        real(self, *arguments)
        quorums = self._quorums
        self._quorums = Quorums(quorums.ensemble, quorums.write, max(1, quorums.ack - 1))

    patch.setattr(LedgerWriter, "__init__", begin)


def plant_fence_too_late(patch: pytest.MonkeyPatch) -> None:
    """Give a ledger its end first, and fence it a moment later."""
    real = bookkeeper_client.BookKeeper.recover_ledger

    async def recover(self: Any, ledger_id: int, *, password: bytes, **options: Any) -> Any:
        found = await real(self, ledger_id, password=password, **options)
        await trio.sleep(1)
        frame = encode_fencing_read(ledger_id, LAST_ENTRY, make_master_key(password))
        key = (Operation.READ, ledger_id, LAST_ENTRY)
        for bookie in found.metadata.last_segment.bookies:
            self.connection(bookie).send(key, (frame,), lambda code, data: None)
        return found

    def encode(ledger_id: int, entry_id: int, master_key: bytes) -> bytes:
        return encode_read(ledger_id, entry_id)

    patch.setattr(bookkeeper_client.BookKeeper, "recover_ledger", recover)
    patch.setattr(bookkeeper_client, "encode_fencing_read", encode)


def plant_two_leaders(patch: pytest.MonkeyPatch) -> None:
    """Make each controller believe that it leads."""

    async def wait(self: LeaderLatch) -> None:
        await trio.lowlevel.checkpoint()

    async def leads(self: LeaderLatch) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    patch.setattr(LeaderLatch, "wait_to_lead", wait)
    patch.setattr(LeaderLatch, "leads", leads)


def plant_registered_before_it_has_looked(patch: pytest.MonkeyPatch) -> None:
    """Register the host without regard to the result of the session's look at the map."""
    real = Membership._live

    async def live(self: Membership, session: ZooKeeper) -> None:
        self._use(None)
        patch.setattr(self, "_read_map", read_nothing)
        await real(self, session)

    async def read_nothing(session: ZooKeeper, on_change: object) -> None:
        await trio.lowlevel.checkpoint()

    patch.setattr(Membership, "_live", live)


def plant_serves_after_its_session(patch: pytest.MonkeyPatch) -> None:
    """Make a store stay with the containers of its first session, whatever the map says in the
    next."""
    real = Membership._live

    async def live(self: Membership, session: ZooKeeper) -> None:
        if self.looked.is_set():
            self._assigned = self._registry.hosted_numbers() if self._registry else frozenset()
            patch.setattr(self, "_use", lambda found: None)
        await real(self, session)

    patch.setattr(Membership, "_live", live)


def plant_acknowledges_when_fenced(patch: pytest.MonkeyPatch) -> None:
    """Make a store tell its clients that all is well although its log is another's."""
    real = BookKeeperDataLog._complete

    def complete(self: BookKeeperDataLog, on_durable: Callable[[Any], None]) -> None:
        real(self, lambda error: on_durable(None))

    patch.setattr(BookKeeperDataLog, "_complete", complete)


def plant_map_from_a_stale_read(patch: pytest.MonkeyPatch) -> None:
    """Make the leader use the first map that it has ever seen."""
    seen: dict[int, VersionedMap] = {}

    async def read(zookeeper: ZooKeeper, *arguments: Any) -> VersionedMap | None:
        found = await read_map(zookeeper, *arguments)
        if found is None:
            return None
        stale = seen.setdefault(id(zookeeper), found)
        return VersionedMap(stale.containers, found.version)

    patch.setattr(monitor, "read_map", read)


def plant_containers_that_nobody_releases(patch: pytest.MonkeyPatch) -> None:
    """Make a store continue with containers that the map gave to others, and open them again
    when it is fenced."""

    def release(self: ContainerRegistry, container_id: int) -> None:
        return None

    async def wait(self: Membership, container_id: int) -> None:
        await trio.lowlevel.checkpoint()

    patch.setattr(ContainerRegistry, "release", release)
    patch.setattr(Membership, "wait_assigned", wait)


def plant_deletes_what_is_needed(patch: pytest.MonkeyPatch) -> None:
    """Delete, together with the garbage, a chunk that a segment has."""
    real = garbage._collect

    async def collect(chunks: Any, journal: Any, *arguments: Any) -> None:
        for record in journal.metadata._in_use.values():
            for chunk in record.chunks[:1]:
                await chunks.delete(chunk.name)
        await real(chunks, journal, *arguments)

    patch.setattr(garbage, "_collect", collect)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (plant_unreachable_as_absent, "does not have it"),
        (plant_acknowledged_below_quorum, "bookies only"),
        (plant_fence_too_late, "does not have it"),
        (plant_two_leaders, "which does not lead"),
        (plant_registered_before_it_has_looked, "before it has looked"),
        (plant_serves_after_its_session, "after the last failure"),
        (plant_acknowledges_when_fenced, "bookies only"),
        (plant_map_from_a_stale_read, "would do"),
        (plant_containers_that_nobody_releases, "after the last failure"),
        (plant_deletes_what_is_needed, "needs it"),
    ],
)
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for seed in range(PLANTED_SEEDS):
        with monkeypatch.context() as patch:
            plant(patch)
            try:
                simulate(seed)
            except FailedSeedError as error:
                found.add(str(error).splitlines()[0])
                if expected in str(error).splitlines()[0]:
                    return
    pytest.fail(f"no seed finds it, but {found}")
