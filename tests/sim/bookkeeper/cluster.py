"""Bookies, the network to them, and the store of metadata, simulated without any waiting.

Owns: ``Schedule`` (simulated time), ``FakeBookie``, ``FakeMetadataStore``, ``Network``.

A bookie answers an add when the entry is synced: a crash forgets what was not. Requests are late,
overtake each other, get lost, are carried out although their sender was told that nobody answers,
and answers come twice.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from random import Random

from bookkeeper_client.metadata import LedgerMetadata, State
from bookkeeper_client.wire.protocol import LAST_ENTRY, Code

SYNC_SECONDS = 0.002
ANSWER_SECONDS_MAX = 0.5
"""After that the client takes a request for lost."""

OnAnswer = Callable[[Code | None, bytes], None]


class BrokenPromiseError(Exception):
    """The checker has seen a broken promise."""


class Schedule:
    """The queue of events by time: the next event moves the clock."""

    def __init__(self, random: Random) -> None:
        self.now = 0.0
        self.step_count = 0
        self.random = random
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do it in so many seconds."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), act))

    def run(self, until: Callable[[], bool], *, seconds_max: float) -> bool:
        """Run until the condition is true; return whether it became true in time."""
        end = self.now + seconds_max
        while not until():
            if not self._queue or self._queue[0][0] > end:
                self.now = end
                return until()
            self.now, _, act = heapq.heappop(self._queue)
            self.step_count += 1
            act()
        return True


class FakeBookie:
    """The state of one ledger on one bookie. Fences are kept at once, entries when synced.

    Reads find entries that are not synced yet: a real bookie stores an entry in memory before it
    writes the entry to its journal. A fencing read therefore finds each entry that the bookie
    accepted before the fence.
    """

    def __init__(self, name: str, schedule: Schedule) -> None:
        self.name = name
        self.entries: dict[int, bytes] = {}
        """The entries that are synced."""
        self.is_fenced = False
        self.is_up = True
        self.is_stopped = False
        """It neither answers nor closes its connections."""
        self.life = 0
        self._schedule = schedule
        self._waiting: list[Callable[[], None]] = []
        self._unsynced: dict[int, bytes] = {}

    def crash(self, keep: Callable[[bytes], bytes | None] = lambda data: None) -> None:
        """Forget what is not synced, but for what ``keep`` makes of it."""
        self.is_up = False
        self.life += 1
        self._waiting.clear()
        for entry_id, data in self._unsynced.items():
            if (kept := keep(data)) is not None:
                self.entries.setdefault(entry_id, kept)
        self._unsynced.clear()

    def go_on(self) -> None:
        """Answer what came while the bookie was stopped."""
        self.is_up, self.is_stopped = True, False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    def receive(self, act: Callable[[], None]) -> None:
        """Carry out a request, at once or when the bookie goes on."""
        if self.is_stopped:
            self._waiting.append(act)
        elif self.is_up:
            act()

    def add(self, entry_id: int, data: bytes, *, is_recovery: bool, answer: OnAnswer) -> None:
        """Sync the entry, then answer."""
        if self.is_fenced and not is_recovery:
            answer(Code.FENCED, b"")
            return
        life = self.life
        self._unsynced[entry_id] = data

        def sync() -> None:
            if life == self.life:
                self._unsynced.pop(entry_id, None)
                self.entries[entry_id] = data
                answer(Code.OK, b"")

        self._schedule.after(SYNC_SECONDS * self._schedule.random.random(), sync)

    def read(self, entry_id: int, *, is_fencing: bool, answer: OnAnswer) -> None:
        """Fence if asked to, then look."""
        self.is_fenced = self.is_fenced or is_fencing
        found = self.entries | self._unsynced
        if entry_id == LAST_ENTRY:
            entry_id = max(found, default=LAST_ENTRY)
        data = found.get(entry_id)
        answer(*((Code.NO_ENTRY, b"") if data is None else (Code.OK, data)))


class FakeMetadataStore:
    """One node of ZooKeeper, whose answers may be late or get lost."""

    ANY_VERSION = -1

    def __init__(self, schedule: Schedule, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.version = 0
        self.lost_share = 0.0
        self.on_closed: Callable[[LedgerMetadata], None] = lambda metadata: None
        self._schedule = schedule

    def store(
        self, metadata: LedgerMetadata, version: int, on_done: Callable[[int | None], None]
    ) -> None:
        """Set the node if it has this version. No version is the answer in any doubt."""
        random = self._schedule.random

        def carry_out() -> None:
            answer: int | None = None
            if version in (self.version, self.ANY_VERSION):
                self._set(metadata)
                answer = self.version
            if random.random() < self.lost_share:
                answer = None
            self._schedule.after(random.random() * 0.01, lambda: on_done(answer))

        if random.random() < self.lost_share:
            # The session's connection breaks; the request may still be on its way.
            self._schedule.after(random.random() * 0.01, lambda: on_done(None))
            if random.random() < 0.5:
                late = random.random() * 0.2
                self._schedule.after(late, lambda: self._set_late(metadata, version))
        else:
            self._schedule.after(random.random() * 0.01, carry_out)

    def fetch(self, on_done: Callable[[LedgerMetadata, int], None]) -> None:
        """Read the node."""
        random = self._schedule.random

        def carry_out() -> None:
            metadata, version = self.metadata, self.version
            self._schedule.after(random.random() * 0.01, lambda: on_done(metadata, version))

        self._schedule.after(random.random() * 0.01, carry_out)

    def _set_late(self, metadata: LedgerMetadata, version: int) -> None:
        if version == self.version:
            self._set(metadata)

    def _set(self, metadata: LedgerMetadata) -> None:
        before = self.metadata
        if before.state is State.CLOSED and metadata != before:
            raise BrokenPromiseError(f"a closed ledger is changed: {before} to {metadata}")
        self.metadata = metadata
        self.version += 1
        if metadata.state is State.CLOSED:
            self.on_closed(metadata)


class Network:
    """The network between clients and bookies."""

    def __init__(self, schedule: Schedule, bookies: dict[str, FakeBookie]) -> None:
        self.lost_share = 0.0
        self.cut: set[tuple[str, str]] = set()
        """Clients and bookies that do not reach each other."""
        self._bookies = bookies
        self._schedule = schedule

    def send(
        self,
        client: str,
        bookie: str,
        request: Callable[[FakeBookie, OnAnswer], None],
        on_answer: OnAnswer,
    ) -> None:
        """Carry a request there and its answer back, or tell that nobody answers."""
        schedule, random = self._schedule, self._schedule.random
        told = False

        def tell(code: Code | None, data: bytes) -> None:
            nonlocal told
            told = True
            on_answer(code, data)

        def answer(code: Code | None, data: bytes) -> None:
            if self._loses(client, bookie):
                return
            for _ in range(2 if random.random() < 0.05 else 1):
                schedule.after(self._delay(), lambda: tell(code, data))

        def arrive() -> None:
            target = self._bookies[bookie]
            target.receive(lambda: request(target, answer))

        def give_up() -> None:
            if not told:
                tell(None, b"")

        target = self._bookies[bookie]
        if not target.is_up and not target.is_stopped:
            schedule.after(self._delay(), give_up)
            return
        schedule.after(ANSWER_SECONDS_MAX, give_up)
        if not self._loses(client, bookie):
            schedule.after(self._delay(), arrive)

    def _loses(self, client: str, bookie: str) -> bool:
        return (client, bookie) in self.cut or self._schedule.random.random() < self.lost_share

    def _delay(self) -> float:
        random = self._schedule.random
        return random.random() * (1.0 if random.random() < self.lost_share else 0.004)
