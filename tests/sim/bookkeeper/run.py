"""One seed: a ledger is written among failures, recovered by several clients, and checked.

The promises: what is confirmed is on an ack quorum of the bookies that the metadata name and never
above a ledger's end; a ledger has one end, for everybody and for ever; it holds all that was
confirmed, and up to the end every entry that was added, unchanged and on an ack quorum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from bookkeeper.clients import Client, RecoveryClient, WriterClient, read_at_once
from bookkeeper.cluster import (
    BrokenPromiseError,
    FakeBookie,
    FakeMetadataStore,
    Network,
    Schedule,
)
from bookkeeper_client.errors import BookKeeperError
from bookkeeper_client.metadata import LedgerMetadata, Segment, State
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.wire.entry_format import DigestType, EntryFormat

QUORUMS = [(3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 1), (1, 1, 1), (5, 3, 2), (4, 3, 2)]
TROUBLED_SECONDS = 6.0
CALM_SECONDS_MAX = 60.0
LEDGER_ID = 7


class FailedSeedError(Exception):
    """The failure of a seed; ``__cause__`` has the details."""


@dataclass(slots=True)
class Report:
    """The events of a seed that kept all promises."""

    seed: int
    step_count: int = 0
    counts: Counter[str] = field(default_factory=Counter)


def simulate(seed: int) -> Report:
    """Run one seed. ``FailedSeedError``."""
    run = _Run(seed)
    try:
        run.go()
    except Exception as error:
        raise FailedSeedError(
            f"seed {seed}: {error!r} (replay: make sim-bookkeeper SEED={seed})"
        ) from error
    run.report.step_count = run.schedule.step_count
    return run.report


class _Run:
    def __init__(self, seed: int) -> None:
        self.report = Report(seed)
        self.random = Random(seed)
        self.schedule = Schedule(self.random)
        self.quorums = Quorums(*self.random.choice(QUORUMS))
        count = self.quorums.ensemble + self.random.randrange(3)
        self.bookies = {f"b{i}": FakeBookie(f"b{i}", self.schedule) for i in range(count)}
        digest_type = self.random.choice([DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC])
        self.entries = EntryFormat(LEDGER_ID, digest_type, b"secret")
        ensemble = tuple(self.random.sample(sorted(self.bookies), self.quorums.ensemble))
        self.store = FakeMetadataStore(
            self.schedule,
            LedgerMetadata(
                quorums=self.quorums,
                state=State.OPEN,
                segments=(Segment(0, ensemble),),
                digest_type=digest_type,
                password=b"secret",
                custom={},
            ),
        )
        self.store.on_closed = self._check_end
        self.network = Network(self.schedule, self.bookies)
        self.payloads: list[bytes] = []
        self.confirmed = -1
        self.recoveries: list[RecoveryClient] = []
        self.is_troubled = True
        self.writer = self._make(WriterClient, "writer")
        self.writer.on_confirmed = self._check_confirmed
        self.writer.begin(self.entries)

    def go(self) -> None:
        """Do the whole run."""
        random, schedule = self.random, self.schedule
        self.network.lost_share = random.choice([0, 0, 0.01, 0.05])
        self.store.lost_share = random.choice([0, 0.2, 0.5])
        schedule.after(0, self._write)
        schedule.after(0, self._trouble)
        for number in range(random.choice([0, 0, 1, 1, 2, 3])):
            schedule.after(random.random() * TROUBLED_SECONDS, lambda n=number: self._recover(n))
        schedule.run(lambda: False, seconds_max=TROUBLED_SECONDS)
        self._calm_down()
        if random.random() < 0.3:
            self.writer.close()
            schedule.run(lambda: self.writer.has_ended, seconds_max=CALM_SECONDS_MAX)
        self._end()

    # ---- What happens ----------------------------------------------------------------------------

    def _make(self, kind: type[Client], name: str) -> Client:
        client = kind(name, self.schedule, self.network, self.store)
        client.available = self._available
        return client

    def _available(self) -> list[str]:
        """Return the bookies by their nodes, sometimes with one that has just gone."""
        bookies = [b.name for b in self.bookies.values() if b.is_up or self.random.random() < 0.3]
        self.random.shuffle(bookies)
        return bookies

    def _write(self) -> None:
        if not self.is_troubled:
            return
        writer = self.writer
        if not writer.is_stopped and writer.machine.error is None:
            for _ in range(self.random.choice([1, 1, 2, 10])):
                payload = self.random.randbytes(self.random.choice([0, 1, 30]))
                if writer.machine.error is not None:
                    break
                self.payloads.append(payload)
                writer.add(payload)
        self.schedule.after(self.random.random() * 0.05, self._write)

    def _trouble(self) -> None:
        """Make something fail, or come back, every now and then."""
        if not self.is_troubled:
            return
        random = self.random
        bookie = random.choice(list(self.bookies.values()))
        fate = random.random()
        if fate < 0.3:
            if bookie.is_up and not bookie.is_stopped:
                self.report.counts["bookie crashed"] += 1
                bookie.crash()
        elif fate < 0.4:
            bookie.is_stopped = bookie.is_up
        elif fate < 0.7:
            bookie.go_on()
        elif fate < 0.8:
            client = random.choice([self.writer, *self.recoveries])
            self.network.cut.add((client.name, bookie.name))
        elif fate < 0.9:
            self.network.cut.clear()
        elif self.writer.is_stopped:
            self.writer.go_on()
        else:
            self.report.counts["writer stopped"] += 1
            self.writer.stop()
        self.schedule.after(random.random() * 0.5, self._trouble)

    def _recover(self, number: int) -> None:
        client = self._make(RecoveryClient, f"recovery-{number}")
        assert isinstance(client, RecoveryClient)
        self.recoveries.append(client)
        client.begin(self.entries)

    def _calm_down(self) -> None:
        self.is_troubled = False
        self.network.lost_share = self.store.lost_share = 0.0
        self.network.cut.clear()
        for bookie in self.bookies.values():
            bookie.go_on()
        self.writer.go_on()

    def _end(self) -> None:
        """End the run without faults: a recovery must succeed and find all confirmed entries."""
        for number in range(100, 110):
            self._recover(number)
            client = self.recoveries[-1]
            self.schedule.run(lambda c=client: c.has_ended, seconds_max=CALM_SECONDS_MAX)
            if client.closed is not None:
                break
        else:
            raise BrokenPromiseError(f"the ledger cannot be recovered: {client.error}")
        self.schedule.run(lambda: False, seconds_max=5)  # what is late comes now
        for client in (self.writer, *self.recoveries):
            if client.closed is not None:
                self._check_reported(client.name, client.closed)
            elif isinstance(client.error, BookKeeperError):
                self.report.counts[type(client.error).__name__] += 1
            elif client.error is not None:
                raise client.error
        metadata = self.store.metadata
        for entry_id in range(metadata.last_entry_id + 1):
            found = read_at_once(metadata, entry_id, self.entries, self.bookies)
            if found != self.payloads[entry_id]:
                raise BrokenPromiseError(f"entry {entry_id} has changed")
        self.report.counts["segments"] += len(metadata.segments)
        self.report.counts["entries"] += metadata.last_entry_id + 1

    # ---- What must hold --------------------------------------------------------------------------

    def _check_confirmed(self, last: int) -> None:
        metadata = self.store.metadata
        if metadata.state is State.CLOSED and last > metadata.last_entry_id:
            raise BrokenPromiseError(f"entry {last} is confirmed above the ledger's end")
        for entry_id in range(self.confirmed + 1, last + 1):
            self._check_kept(metadata, entry_id)
        self.confirmed = max(self.confirmed, last)

    def _check_kept(self, metadata: LedgerMetadata, entry_id: int) -> None:
        """Check that the entry is on an ack quorum, unchanged."""
        bookies = metadata.segment_of(entry_id).bookies
        kept = 0
        for index in self.quorums.write_set(entry_id):
            data = self.bookies[bookies[index]].entries.get(entry_id)
            if data is not None:
                payload = self.entries.decode(data, entry_id).payload
                if payload != self.payloads[entry_id]:
                    raise BrokenPromiseError(f"entry {entry_id} has changed")
                kept += 1
        if kept < self.quorums.ack:
            raise BrokenPromiseError(f"entry {entry_id} is on {kept} bookies only")

    def _check_end(self, metadata: LedgerMetadata) -> None:
        last = metadata.last_entry_id
        if last < self.confirmed:
            raise BrokenPromiseError(f"the ledger ends at {last}, {self.confirmed} is confirmed")
        for entry_id in range(last + 1):
            self._check_kept(metadata, entry_id)
        length = sum(map(len, self.payloads[: last + 1]))
        is_certain = all(client.is_length_certain for client in self.recoveries)
        if metadata.length != length and is_certain:
            raise BrokenPromiseError(f"{metadata.length} bytes instead of {length}")

    def _check_reported(self, name: str, reported: LedgerMetadata) -> None:
        if reported != self.store.metadata:
            raise BrokenPromiseError(f"{name} was told another end")
