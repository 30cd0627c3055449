"""Clients of the simulated bookies: they carry out what the state machines want.

Owns: ``WriterClient`` (adds entries, may be stopped for a while) and ``RecoveryClient``.
"""

from __future__ import annotations

from collections.abc import Callable

from bookkeeper.cluster import FakeBookie, FakeMetadataStore, Network, OnAnswer, Schedule
from bookkeeper_client.metadata import LedgerMetadata
from bookkeeper_client.state_machines.effects import (
    Closed,
    Confirmed,
    Failed,
    FetchMetadata,
    FindBookies,
    SendAdd,
    SendRead,
    StoreMetadata,
)
from bookkeeper_client.state_machines.reading import EntryRead
from bookkeeper_client.state_machines.recovery import LedgerRecovery
from bookkeeper_client.state_machines.writing import LedgerWriter
from bookkeeper_client.wire.entry_format import EntryFormat
from bookkeeper_client.wire.protocol import Code

LOOK_SECONDS = 0.3
"""Interval, in seconds, at which a client looks for bookies while it wants some."""


class Client:
    """A client that carries out the effects of one machine."""

    machine: LedgerWriter | LedgerRecovery

    def __init__(
        self, name: str, schedule: Schedule, network: Network, store: FakeMetadataStore
    ) -> None:
        self.name = name
        self.closed: LedgerMetadata | None = None
        self.error: Exception | None = None
        self.is_stopped = False
        self.available: Callable[[], list[str]] = list
        self.on_confirmed: Callable[[int], None] = lambda entry_id: None
        self._schedule = schedule
        self._network = network
        self._store = store
        self._waiting: list[Callable[[], None]] = []
        self._is_looking = False
        self._looked_at = -LOOK_SECONDS

    @property
    def has_ended(self) -> bool:
        """Return whether the machine has a result."""
        return self.closed is not None or self.error is not None

    def stop(self) -> None:
        """Stop, as a process does at SIGSTOP."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Wake up without having noticed."""
        self.is_stopped = False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            self._do(act)

    def _do(self, act: Callable[[], None]) -> None:
        if self.is_stopped:
            self._waiting.append(act)
            return
        act()
        self.carry_out()

    def carry_out(self) -> None:
        """Take off the machine's effects."""
        effects = self.machine.effects
        while effects:
            effect = effects.popleft()
            match effect:
                case SendAdd():
                    self._send_add(effect)
                case SendRead():
                    self._send_read(effect)
                case StoreMetadata():
                    self._store.store(effect.metadata, effect.version, self._take_stored)
                case FetchMetadata():
                    self._store.fetch(
                        lambda metadata, version: self._do(
                            lambda: self.machine.on_fetched(metadata, version)
                        )
                    )
                case FindBookies():
                    self._look_later()
                case Confirmed():
                    self.on_confirmed(effect.entry_id)
                case Closed():
                    self.closed = effect.metadata
                case Failed():
                    self.error = effect.error

    def _take_stored(self, version: int | None) -> None:
        if version is None:
            self._do(self.machine.on_store_doubtful)
        else:
            self._do(lambda: self.machine.on_stored(version))

    def _look_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            now = self._schedule.now
            self._schedule.after(max(0.01, self._looked_at + LOOK_SECONDS - now), self._look)

    def _look(self) -> None:
        self._is_looking = False
        self._looked_at = self._schedule.now
        self._do(lambda: self.machine.on_bookies_found(self.available()))
        if self.machine.wants_bookies:
            self._look_later()

    def _send_add(self, effect: SendAdd) -> None:
        data = b"".join(effect.entry)

        def request(bookie: FakeBookie, answer: OnAnswer) -> None:
            bookie.add(effect.entry_id, data, is_recovery=effect.is_recovery, answer=answer)

        def on_answer(code: Code | None, _: bytes) -> None:
            self._do(lambda: self.machine.on_added(effect.bookie, effect.entry_id, code))

        self._network.send(self.name, effect.bookie, request, on_answer)

    def _send_read(self, effect: SendRead) -> None:
        def request(bookie: FakeBookie, answer: OnAnswer) -> None:
            bookie.read(effect.entry_id, is_fencing=effect.is_fencing, answer=answer)

        def on_answer(code: Code | None, data: bytes) -> None:
            machine = self.machine
            assert isinstance(machine, LedgerRecovery)
            self._do(lambda: machine.on_read(effect.bookie, effect.entry_id, code, data))

        self._network.send(self.name, effect.bookie, request, on_answer)


class WriterClient(Client):
    """A client that adds entries."""

    machine: LedgerWriter

    def begin(self, entries: EntryFormat) -> None:
        """Take the ledger as it was made."""
        self.machine = LedgerWriter(self._store.metadata, self._store.version, entries)

    def add(self, payload: bytes) -> int:
        """Add one entry."""
        entry_id = self.machine.add((payload,))
        self.carry_out()
        return entry_id

    def close(self) -> None:
        """Ask for an end."""
        self._do(self.machine.close)


class RecoveryClient(Client):
    """A client that recovers the ledger once."""

    machine: LedgerRecovery

    @property
    def is_length_certain(self) -> bool:
        """Return whether nothing was estimated."""
        return not hasattr(self, "machine") or self.machine.is_length_certain

    def begin(self, entries: EntryFormat) -> None:
        """Look at the metadata, and begin."""

        def take(metadata: LedgerMetadata, version: int) -> None:
            self.machine = LedgerRecovery(metadata, version, entries)
            self._do(lambda: None)

        self._store.fetch(take)


def read_at_once(
    metadata: LedgerMetadata, entry_id: int, entries: EntryFormat, bookies: dict[str, FakeBookie]
) -> bytes:
    """Read an entry as a client would, of bookies that all answer at once."""
    machine = EntryRead(metadata, entry_id, entries)
    while machine.effects:
        effect = machine.effects.popleft()
        name = effect.bookie
        bookies[name].read(
            entry_id,
            is_fencing=False,
            answer=lambda code, data, name=name: machine.on_read(name, code, data),
        )
    if machine.error is not None:
        raise machine.error
    assert machine.entry is not None
    return machine.entry.payload
