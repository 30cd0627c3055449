"""One container's log in BookKeeper ledgers: appending, changing to the next ledger, truncating,
reading.

The log's *node* in ZooKeeper lists its ledgers by *sequence* numbers; only the owner changes it, on
condition of its version. Example: the log is opened, its node names the ledgers 31 and 32 with
sequences 1 and 2, and the owner adds ledger 33 with sequence 3. The entry with id 7 in ledger 33
has the position 3 << 32 | 7 = 12,884,901,895. When ledger 33 has ``ledger_bytes_max``, ledger 34 is
added with sequence 4; its first entry has the position 4 << 32 = 17,179,869,184, and is sent when
all entries of ledger 33 are durable. A truncation to this position removes the ledgers 31 to 33
from the node, then deletes them.

Bookies forget that a ledger was fenced some time after it was deleted, and then accept entries for
it again. So ledgers of earlier owners are deleted ``forgetting_seconds`` after the opening at the
earliest. And an owner that has sent nothing for ``doubt_seconds`` reads the node before it reports
further entries as durable.

Invariants:
1. When a log continues in further ledgers, each entry keeps the address that its append returned.
   Held by ``test_a_log_goes_on_in_further_ledgers``.
2. When a ledger fails, the log fails: all entries that are not durable get the error, in order.
   Held by ``test_a_lost_ledger_fails_all_that_waits_in_order``.
3. When entries of a ledger are not durable, no entry is sent to the next ledger. Held by
   ``test_no_entry_is_sent_before_the_ledger_before_is_durable``.
4. When another owner has opened the log, this owner can neither change the node nor append. Held by
   ``test_an_owner_that_was_replaced_changes_nothing``.
5. When a truncation cannot be stored in the node, no ledger is deleted. Held by
   ``test_a_truncation_that_is_not_stored_deletes_no_ledger``.
6. When bookies have forgotten a fence and accept an entry of the earlier owner, the entry is not
   acknowledged. Held by
   ``test_bookies_that_forgot_a_ledger_acknowledge_nothing_to_its_earlier_owner``.
7. When the next owner truncates soon after its opening, the ledgers of earlier owners stay. Held by
   ``test_ledgers_of_earlier_owners_are_kept_for_a_while``.
8. When bookies refuse an entry, it proves no ownership. Held by
   ``test_an_entry_that_was_refused_proves_no_ownership``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

import trio

from bookkeeper_client.client import BookKeeper, WritableLedger
from bookkeeper_client.errors import BookKeeperError, FencedError
from bookkeeper_client.readable_ledger import ReadableLedger
from segstore.errors import DataLogError
from segstore.tiers.api import (
    IN_FLIGHT_BYTES_MAX,
    LOG_ENTRY_BYTES_MAX,
    Buffer,
    DigestedEntry,
    LogAddress,
    LogEntry,
    LogPart,
    OnDurable,
    OwnerProof,
)
from segstore.tiers.bookkeeper.log_metadata import ENTRIES_MAX, ENTRY_BITS, LogLedger
from segstore.tiers.bookkeeper.metadata_node import MetadataNode
from segstore.tiers.bookkeeper.sizes import LogSizes
from zookeeper_client.api import ZooKeeperError

logger = logging.getLogger(__name__)

BYTES_AHEAD = 8 * 1024 * 1024
"""Number of bytes that a recovery requests ahead of the entries that it processes."""

OVERLAPPING_ENTRIES = 4
"""Number of entries that should be under way at the same time. A bookie collects entries for up to
2 ms, then syncs them for about as long; each further entry costs bookie and client the same,
however short it is."""
WIDEN_SECONDS = 10.0
"""Pause, in seconds, between searches for bookies when the ledger has too few of them."""
RETRY_SECONDS = 5.0
"""Pause, in seconds, between attempts to make the next ledger. The log uses the full one
meanwhile."""


@dataclass(slots=True)
class _Unproved:
    """An entry that bookies have confirmed, and that is not acknowledged until the log's owner is
    known."""

    sent_at: float
    on_durable: OnDurable


@dataclass(slots=True)
class _Held:
    """An entry that waits until all entries of the previous ledger are durable."""

    entry_id: int
    parts: Sequence[Buffer]
    on_durable: OnDurable


class BookKeeperDataLog:
    """See ``DurableDataLog``; opened by ``BookKeeperLogFactory``."""

    def __init__(
        self,
        client: BookKeeper,
        node: MetadataNode,
        earlier: dict[int, ReadableLedger],
        ledger: WritableLedger,
        *,
        opened_at: float,
        ledger_bytes_max: int,
        bookie_count: int,
        sizes: LogSizes,
    ) -> None:
        self._client = client
        self._node = node
        self._epoch = node.metadata.epoch
        self._earlier = earlier
        """The ledgers with entries when the log was opened, by sequence."""
        self._ledger = ledger
        self._sequence = node.metadata.ledgers[-1].sequence
        self._found_ids = frozenset(each.ledger_id for each in node.metadata.ledgers[:-1])
        """The ids of the ledgers of earlier owners in the node."""
        self._keeps_found_until = trio.current_time() + forgetting_seconds(client)
        self._owned_at = opened_at
        """Last time at which this owner was certainly the log's owner."""
        self._unproved: deque[_Unproved] = deque()
        self._is_proving = False
        self._next_entry_id = 0
        self._ledger_bytes_max = ledger_bytes_max
        self._bookie_count = bookie_count
        """Number of bookies that a new ledger should have."""
        self._widened_at = trio.current_time()
        """Time of the last search for bookies."""
        self._sizes = sizes
        self._first_position = node.metadata.truncated_position + 1
        self._before: WritableLedger | None = None
        """The previous ledger, while entries of it are not durable."""
        self._held: deque[_Held] = deque()
        self._outstanding = 0
        self._idle = trio.Event()
        self._idle.set()
        self._is_rolling = False
        self._is_closed = False
        self._error: DataLogError | None = None

    @property
    def epoch(self) -> int:
        """Return the epoch under which this owner opened the log."""
        return self._epoch

    @property
    def bytes_since_truncation(self) -> int:
        """Return the number of bytes of the entries that a recovery would read."""
        return self._sizes.held

    @property
    def overlapping_entries(self) -> int:
        """Return several: a bookie collects entries before it syncs, and collects more while it
        syncs."""
        return OVERLAPPING_ENTRIES

    @property
    def in_flight_bytes_max(self) -> int:
        """Return the maximum of any log: the entries use no disk of this process."""
        return IN_FLIGHT_BYTES_MAX

    @property
    def held_bytes(self) -> int:
        """Return the number of bytes after the truncation point. A truncation frees a ledger only
        as a whole, but nothing that the store does would free the current one earlier."""
        return self._sizes.held

    @property
    def delay_reason(self) -> str | None:
        """Return None: when too few bookies take entries, the log fails soon, with a reason."""
        return None

    @property
    def owner_proof(self) -> OwnerProof:
        """Return the log itself."""
        return self

    @property
    def owned_at(self) -> float:
        """Return the last time at which the log was known to have no other owner."""
        return self._owned_at

    async def prove_owner(self) -> bool:
        """Look at the log's node; return whether it could be seen. Fails the log, and raises
        ``DataLogError``, when it is another owner's."""
        if self._error is None:
            began = trio.current_time()
            try:
                await self._node.check_owner()
            except FencedError as error:
                self._fail(error)
            except (BookKeeperError, ZooKeeperError) as error:
                logger.info("it cannot be seen who owns the log: %s", error)
                return False
            else:
                self._owned_at = max(self._owned_at, began)
        if self._error is not None:
            raise self._error
        return True

    # ---- Reading ---------------------------------------------------------------------------------

    async def read(self) -> AsyncGenerator[LogEntry, None]:
        """Yield the entries that were stored when the log was opened."""
        async with aclosing(self.read_digests()) as batches:
            async for batch in batches:
                for entry in batch:
                    yield LogEntry(entry.address, entry.data)

    async def read_digests(self) -> AsyncGenerator[list[DigestedEntry], None]:
        """Yield the entries with their bytes: bookies make no digests."""
        before = refined = 0
        for sequence in sorted(self._earlier):
            ledger = self._earlier[sequence]
            first = self._first_entry_id(sequence)
            async with aclosing(ledger.read_from(first, bytes_ahead=BYTES_AHEAD)) as arriving:
                try:
                    async for entries in arriving:
                        batch = []
                        for entry in entries:
                            position = sequence << ENTRY_BITS | entry.entry_id
                            batch.append(DigestedEntry(LogAddress(position), None, entry.payload))
                            if before - refined >= self._sizes.sample_bytes:
                                self._sizes.refine(position, before)
                                refined = before
                            before += len(entry.payload)
                        yield batch
                except (BookKeeperError, ZooKeeperError) as error:
                    message = f"ledger {ledger.ledger_id} cannot be read: {error}"
                    raise DataLogError(message) from error

    async def read_entry(self, address: LogAddress) -> bytes:
        """Read one entry that was stored when the log was opened."""
        sequence, entry_id = address.position >> ENTRY_BITS, address.position % ENTRIES_MAX
        ledger = self._earlier.get(sequence)
        if (
            ledger is None
            or address.position < self._first_position
            or entry_id > ledger.last_entry_id
        ):
            await trio.lowlevel.checkpoint()
            raise DataLogError(f"the log has no entry {address.position}")
        try:
            return await ledger.read(entry_id)
        except (BookKeeperError, ZooKeeperError) as error:
            raise DataLogError(f"entry {address.position} cannot be read: {error}") from error

    async def read_parts(self, parts: Sequence[LogPart]) -> list[bytes]:
        """Read parts of entries that were stored when the log was opened. Each entry is read
        once."""
        found: list[bytes] = []
        position, data = -1, b""
        for part in parts:
            if part.position != position:
                position, data = part.position, await self.read_entry(LogAddress(part.position))
            found.append(data[part.start :][: part.length])
        return found

    def _first_entry_id(self, sequence: int) -> int:
        if self._first_position >> ENTRY_BITS != sequence:
            return 0
        return self._first_position % ENTRIES_MAX

    # ---- Appending -------------------------------------------------------------------------------

    def append_nowait(self, parts: Sequence[Buffer], on_durable: OnDurable) -> LogAddress:
        """Send one entry to the ledger, or keep it until the previous ledger is complete."""
        size = sum(map(len, parts))
        assert size <= LOG_ENTRY_BYTES_MAX, "the entry is too long"
        entry_id = self._next_entry_id
        position = self._sequence << ENTRY_BITS | entry_id
        error = self._error
        if error is None and self._is_closed:
            error = DataLogError("the log is closed")
        if error is not None:
            trio.lowlevel.current_trio_token().run_sync_soon(on_durable, error)
            return LogAddress(position)
        self._next_entry_id += 1
        self._sizes.add(position, size)
        self._outstanding += 1
        if self._idle.is_set():
            self._idle = trio.Event()
        if self._before is None:
            self._send(_Held(entry_id, parts, on_durable))
        else:
            self._held.append(_Held(entry_id, parts, on_durable))
        if not self._is_rolling and self._before is None:
            self._roll_over_if_due()
        return LogAddress(position)

    def _send(self, held: _Held) -> None:
        sent_at = trio.current_time()

        def on_done(error: Exception | None) -> None:
            if error is not None and self._error is None:
                self._fail(error)
            self._unproved.append(_Unproved(sent_at, held.on_durable))
            self._complete_proved()

        try:
            entry_id = self._ledger.add_nowait(held.parts, on_done)
        except BookKeeperError as error:
            self._fail(error)
            trio.lowlevel.current_trio_token().run_sync_soon(self._complete, held.on_durable)
        else:
            assert entry_id == held.entry_id, "the ledger has an entry of another writer"

    def _complete_proved(self) -> None:
        """Acknowledge the confirmed entries that are certainly durable; in a failed log, complete
        all with the error. If some remain, start a check of the owner."""
        unproved, doubt_seconds = self._unproved, self._client.settings.doubt_seconds
        now = trio.current_time()
        while unproved and (self._error is not None or now - self._owned_at <= doubt_seconds):
            entry = unproved.popleft()
            if self._error is None:
                self._owned_at = max(self._owned_at, entry.sent_at)
            self._complete(entry.on_durable)
        if unproved and not self._is_proving:
            self._is_proving = True
            self._client.nursery.start_soon(self._prove)

    async def _prove(self) -> None:
        """Check in ZooKeeper who owns the log, and acknowledge the entries that were confirmed
        before the check. The log fails if ZooKeeper does not answer for ``confirm_seconds_max``."""
        settings = self._client.settings
        with trio.move_on_after(settings.confirm_seconds_max) as patience:
            while self._unproved:
                count = len(self._unproved)
                with suppress(DataLogError):
                    if not await self.prove_owner():
                        await trio.sleep(settings.look_seconds)
                        continue
                    for _ in range(count):
                        if self._error is None and self._unproved:
                            self._complete(self._unproved.popleft().on_durable)
                self._complete_proved()
        self._is_proving = False
        if patience.cancelled_caught and self._unproved:
            self._fail(DataLogError("it cannot be seen who owns the log: ZooKeeper is away"))

    def _complete(self, on_durable: OnDurable) -> None:
        self._outstanding -= 1
        on_durable(self._error)
        if self._outstanding == len(self._held):
            if self._error is not None:
                while self._held:
                    self._outstanding -= 1
                    self._held.popleft().on_durable(self._error)
            elif self._before is not None:
                self._go_on_in_next_ledger()
        if self._outstanding == 0:
            self._idle.set()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            said = f"the log is fenced: {error}" if isinstance(error, FencedError) else str(error)
            self._error = DataLogError(said)
            self._error.__cause__ = error
            self._complete_proved()
            for ledger in (self._before, self._ledger):
                if ledger is not None:
                    ledger.abandon(error)

    # ---- Rolling over ----------------------------------------------------------------------------

    def _roll_over_if_due(self) -> None:
        """Start to make another ledger if this one is full, or if it has too few bookies and more
        may be available."""
        if self._ledger.length >= self._ledger_bytes_max:
            self._is_rolling = True
            self._client.nursery.start_soon(self._roll_over)
        elif self._ledger.quorums.ensemble < self._bookie_count:
            now = trio.current_time()
            if now >= self._widened_at + WIDEN_SECONDS:
                self._widened_at = now
                self._is_rolling = True
                self._client.nursery.start_soon(self._widen)

    async def _widen(self) -> None:
        """Change to a ledger on ``_bookie_count`` bookies if that many are available."""
        try:
            count = len(await self._client.draw_bookies())
        except (BookKeeperError, ZooKeeperError) as error:
            logger.info("no further bookies can be looked for: %s", error)
            count = 0
        if count >= self._bookie_count:
            await self._roll_over()
        else:
            self._is_rolling = False

    async def _roll_over(self) -> None:
        """Make the next ledger; further entries go to it."""
        while self._error is None and not self._is_closed:
            try:
                ledger = await self._node.add_ledger(self._client)
            except FencedError as error:
                self._fail(error)
                return
            except (BookKeeperError, ZooKeeperError) as error:
                logger.warning("no further ledger can be made: %s", error)
                await trio.sleep(RETRY_SECONDS)
                continue
            if self._error is not None:
                ledger.abandon(self._error)
                return
            self._before, self._ledger = self._ledger, ledger
            self._sequence = self._node.metadata.ledgers[-1].sequence
            self._next_entry_id = 0
            if self._is_closed:
                self._client.nursery.start_soon(_close_ledger, ledger)
            if self._outstanding == 0:
                self._go_on_in_next_ledger()
            break
        self._is_rolling = False

    def _go_on_in_next_ledger(self) -> None:
        """Close the previous ledger, whose entries are all durable, and send the entries that
        waited for that."""
        before, self._before = self._before, None
        assert before is not None
        self._client.nursery.start_soon(_close_ledger, before)
        while self._held:
            self._send(self._held.popleft())

    # ---- Truncating and closing ------------------------------------------------------------------

    async def truncate(self, address: LogAddress) -> None:
        """Store the truncation point in the node, then delete the ledgers before it."""
        if address.position <= self._first_position:
            await trio.lowlevel.checkpoint()
            return
        try:
            is_early = trio.current_time() < self._keeps_found_until
            keeps = self._found_ids if is_early else frozenset()
            dropped = await self._node.truncate(address.position, keeps)
        except FencedError as error:
            self._fail(error)
            raise DataLogError(f"the log is fenced: {error}") from error
        except (BookKeeperError, ZooKeeperError) as error:
            raise DataLogError(f"the log cannot be truncated: {error}") from error
        self._first_position = max(self._first_position, address.position)
        self._sizes.drop_before(address.position)
        for sequence in [each for each in self._earlier if each < address.position >> ENTRY_BITS]:
            del self._earlier[sequence]
        await delete_ledgers(self._client, dropped)

    async def aclose(self) -> None:
        """Wait until the queued entries are durable, and close the ledger."""
        was_closed, self._is_closed = self._is_closed, True
        await self._idle.wait()
        if not was_closed and self._error is None:
            await _close_ledger(self._ledger)


def forgetting_seconds(client: BookKeeper) -> float:
    """Return for how many seconds the ledgers of earlier owners are kept after an opening, so that
    bookies remember that they are fenced."""
    return 2 * client.settings.doubt_seconds


async def _close_ledger(ledger: WritableLedger) -> None:
    """Close a ledger. If that fails, the recovery of the next owner closes it."""
    try:
        await ledger.close()
    except (BookKeeperError, ZooKeeperError) as error:
        logger.info("ledger %d stays open: %s", ledger.ledger_id, error)


async def delete_ledgers(client: BookKeeper, ledgers: Sequence[LogLedger]) -> None:
    """Delete ledgers that the node does not name any more. Errors are ignored: such a ledger
    stays."""
    for each in ledgers:
        with suppress(BookKeeperError, ZooKeeperError):
            await client.delete_ledger(each.ledger_id)
