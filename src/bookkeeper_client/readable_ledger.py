"""Reads a closed ledger: one entry, or many in order, with read-ahead.

Owns: ``ReadableLedger``. A read needs no task of its own: answers continue it, and the caller that
waits for it asks another bookie when one is slow.

Invariants:
1. When a bookie hangs, only the reads that were sent to it before that was noticed are slow: later
   reads ask it after all others. Held by
   ``test_a_bookie_that_stands_still_delays_only_what_was_sent_to_it_by_then``.
2. When all other bookies fail, a bookie that was slow is asked again. Held by
   ``test_a_bookie_that_was_slow_is_asked_again_when_the_others_cannot_help``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from functools import partial
from typing import Final

import trio

from bookkeeper_client.connections.connections import BookieConnection
from bookkeeper_client.metadata import LedgerMetadata
from bookkeeper_client.state_machines.reading import EntryRead
from bookkeeper_client.wire.entry_format import Entry, EntryFormat
from bookkeeper_client.wire.protocol import Code, Operation, encode_read

AHEAD_MIN: Final = 4
AHEAD_MAX: Final = 128
"""Minimum and maximum number of entries that are read at the same time."""

FindConnection = Callable[[str], BookieConnection]


class _PendingRead:
    """An entry that is being read."""

    def __init__(
        self,
        ledger_id: int,
        entry_id: int,
        machine: EntryRead,
        find_connection: FindConnection,
        slow: set[str],
    ) -> None:
        self._machine = machine
        self._slow = slow
        self._key = (Operation.READ, ledger_id, entry_id)
        self._frame = (encode_read(ledger_id, entry_id),)
        self._find_connection = find_connection
        self._ended: trio.Event | None = None
        self._ask()

    @property
    def has_ended(self) -> bool:
        """Return whether there is a result."""
        return self._machine.has_ended

    def _ask(self) -> None:
        effects = self._machine.effects
        while effects:
            bookie = effects.popleft().bookie
            on_answer = partial(self._on_answer, bookie)
            self._find_connection(bookie).send(self._key, self._frame, on_answer)

    def _on_answer(self, bookie: str, code: Code | None, data: bytes) -> None:
        if code is not None:
            self._slow.discard(bookie)
        self._machine.on_read(bookie, code, data)
        self._ask()
        if self._machine.has_ended and self._ended is not None:
            self._ended.set()

    async def wait(self) -> None:
        """Wait until the read has ended."""
        if not self._machine.has_ended:
            self._ended = trio.Event()
            await self._ended.wait()

    def on_slow(self) -> None:
        """Ask one more bookie, unless the read has ended."""
        if not self._machine.has_ended:
            self._slow.update(self._machine.silent)
            self._machine.on_slow()
            self._ask()

    def result(self) -> Entry:
        """Return the entry. Call it when the read has ended. Raises ``BookKeeperError``."""
        if self._machine.error is not None:
            raise self._machine.error
        assert self._machine.entry is not None
        return self._machine.entry


class ReadableLedger:
    """A closed ledger."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        entries: EntryFormat,
        find_connection: FindConnection,
        *,
        slow_seconds: float,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self._entries = entries
        self._find_connection = find_connection
        self._slow_seconds = slow_seconds
        self._slow: set[str] = set()
        """Bookies that were slow and have not answered since."""

    @property
    def last_entry_id(self) -> int:
        """Return the id of the last entry; -1 if there is none."""
        return self.metadata.last_entry_id

    async def length_before(self, entry_id: int) -> int:
        """Return the number of bytes of all payloads before an entry.

        Raises ``UnreadableEntryError``.
        """
        entry = await self._read(entry_id)
        return entry.length - len(entry.payload)

    async def read(self, entry_id: int) -> bytes:
        """Read one entry. After ``UnreadableEntryError`` a later attempt may succeed."""
        return (await self._read(entry_id)).payload

    async def read_from(self, first: int, *, bytes_ahead: int) -> AsyncGenerator[list[Entry], None]:
        """Yield the entries from ``first`` on, in order, in lists of those that have arrived.

        About ``bytes_ahead`` bytes of the following entries are requested meanwhile; a list may
        have as many bytes. Raises ``UnreadableEntryError``.
        """
        if self.last_entry_id < first:
            await trio.lowlevel.checkpoint()
            return
        length_mean = max(1, self.metadata.length // (self.last_entry_id + 1))
        count = min(max(AHEAD_MIN, bytes_ahead // length_mean), AHEAD_MAX)
        unasked = iter(range(first, self.last_entry_id + 1))
        asked: deque[_PendingRead] = deque()
        self._ask_ahead(unasked, asked, count)
        while asked:
            await self._wait_for_first(asked)
            arrived = []
            while asked and asked[0].has_ended:
                arrived.append(asked.popleft().result())
            self._ask_ahead(unasked, asked, count)
            yield arrived

    def _ask_ahead(self, unasked: Iterator[int], asked: deque[_PendingRead], count: int) -> None:
        while len(asked) < count and (entry_id := next(unasked, None)) is not None:
            asked.append(self._begin(entry_id))

    async def _read(self, entry_id: int) -> Entry:
        read = self._begin(entry_id)
        await self._wait_for_first((read,))
        return read.result()

    async def _wait_for_first(self, asked: Collection[_PendingRead]) -> None:
        """Return when the first of these reads has ended. If that takes ``_slow_seconds``, ask one
        more bookie for each."""
        first = next(iter(asked))
        while not first.has_ended:
            with trio.move_on_after(self._slow_seconds) as scope:
                await first.wait()
            if scope.cancelled_caught:
                for each in asked:
                    each.on_slow()

    def _begin(self, entry_id: int) -> _PendingRead:
        if not 0 <= entry_id <= self.last_entry_id:
            raise ValueError(f"the ledger ends at {self.last_entry_id}: there is no {entry_id}")
        machine = EntryRead(self.metadata, entry_id, self._entries, asked_last=self._slow)
        return _PendingRead(self.ledger_id, entry_id, machine, self._find_connection, self._slow)
