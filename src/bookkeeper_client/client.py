"""A client of BookKeeper's bookies on trio: it makes, writes, recovers, reads and deletes ledgers.

Owns: ``open_bookkeeper``, and the execution of the effects that the state machines request. A
ledger's node in ZooKeeper is made before its first entry is sent, because bookies delete entries of
ledgers without a node.

    bookkeeper = await open_bookkeeper(zookeeper, "/ledgers", nursery)
    ledger = await bookkeeper.create_ledger(Quorums(3, 3, 2), password=b"")
    entry_id = await ledger.add(b"bytes")
    await ledger.close()
    found = await bookkeeper.recover_ledger(ledger.ledger_id, password=b"")
    assert await found.read(entry_id) == b"bytes"

Invariants:
1. When a client recovers a ledger that another client writes, the writer fails and the ledger gets
   an end. Held by ``test_a_recovery_ends_the_writer``.
2. When answers of ZooKeeper get lost, a ledger is made, closed or recovered with all its entries,
   or the call fails. Held by ``test_lost_answers_of_zookeeper_do_no_harm``.
3. When too few bookies confirm an entry for ``confirm_seconds_max``, the writer fails. Held by
   ``test_a_writer_without_a_quorum_waits_and_is_given_up``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import trio

from bookkeeper_client.connections.connections import BookieConnection, ConnectionLimits
from bookkeeper_client.connections.transports import OpenTransport, open_tcp_transport
from bookkeeper_client.errors import BookKeeperError, NoSuchLedgerError, NotEnoughBookiesError
from bookkeeper_client.ledger_store import LedgerStore
from bookkeeper_client.metadata import LedgerMetadata, Segment, State
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.readable_ledger import ReadableLedger
from bookkeeper_client.registry import BookieRegistry
from bookkeeper_client.state_machines.effects import (
    Closed,
    Confirmed,
    Effect,
    Failed,
    FetchMetadata,
    FindBookies,
    SendAdd,
    SendRead,
    StoreMetadata,
)
from bookkeeper_client.state_machines.racks import Racks
from bookkeeper_client.state_machines.recovery import LedgerRecovery, check_password
from bookkeeper_client.state_machines.writing import LedgerWriter
from bookkeeper_client.wire.entry_format import DigestType, EntryFormat, make_master_key
from bookkeeper_client.wire.protocol import (
    Buffer,
    Code,
    Operation,
    encode_add,
    encode_fencing_read,
)
from zookeeper_client.api import ZooKeeper, ZooKeeperError

logger = logging.getLogger(__name__)

OnDone = Callable[[Exception | None], None]


@dataclass(frozen=True, slots=True)
class BookKeeperSettings:
    """The time limits of a client, in seconds."""

    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    slow_seconds: float = 2.0
    """Time after which a read asks one more bookie."""
    look_seconds: float = 1.0
    """Interval between searches for bookies while one is missing."""
    confirm_seconds_max: float = 60.0
    """Maximum time until an entry is confirmed; after it the writer fails."""
    doubt_seconds: float = 30.0
    """Maximum time after a confirmation within which the next one is trusted. Later, some bookies
    may have deleted the ledger and forgotten that it was fenced. See ``data_log``."""


async def open_bookkeeper(
    zookeeper: ZooKeeper,
    ledgers_root: str,
    nursery: trio.Nursery,
    *,
    settings: BookKeeperSettings | None = None,
    racks: Racks | None = None,
    random: Random | None = None,
    open_transport: OpenTransport = open_tcp_transport,
) -> BookKeeper:
    """Open a client of the bookies that are registered below ``ledgers_root`` in ZooKeeper. Raises
    ``BookKeeperError``.

    Its connections live as long as the nursery, which the caller cancels at the end.
    """
    store = LedgerStore(zookeeper, ledgers_root)
    await store.check_layout()
    registry = BookieRegistry(zookeeper, ledgers_root)
    return BookKeeper(
        store,
        registry,
        nursery,
        settings or BookKeeperSettings(),
        racks or Racks(),
        random or Random(),
        open_transport,
    )


class BookKeeper:
    """See the module."""

    def __init__(
        self,
        store: LedgerStore,
        registry: BookieRegistry,
        nursery: trio.Nursery,
        settings: BookKeeperSettings,
        racks: Racks,
        random: Random,
        open_transport: OpenTransport,
    ) -> None:
        self.store = store
        self.registry = registry
        self.settings = settings
        self.nursery = nursery
        self._racks = racks
        self._random = random
        self._open_transport = open_transport
        self._connections: dict[str, BookieConnection] = {}

    async def create_ledger(
        self,
        quorums: Quorums,
        *,
        password: bytes,
        digest_type: DigestType = DigestType.CRC32C,
        custom: Mapping[str, bytes] | None = None,
        may_be_narrow: bool = False,
    ) -> WritableLedger:
        """Make a ledger on random bookies from as many racks as possible.

        If there are fewer bookies than the ensemble has, a ledger that ``may_be_narrow`` is made on
        those, if they are enough to confirm an entry. Raises ``NotEnoughBookiesError`` and
        ``ZooKeeperError``.
        """
        bookies = await self.draw_bookies()
        needed = quorums.ack if may_be_narrow else quorums.ensemble
        if len(bookies) < needed:
            full = await self.registry.find_read_only()
            raise NotEnoughBookiesError(
                f"a ledger needs {needed} bookies, {len(bookies)} take writes"
                + (f"; read-only, as on a full disk: {', '.join(full)}" if full else "")
            )
        if len(bookies) < quorums.ensemble:
            logger.warning("a ledger has %d bookies of %d", len(bookies), quorums.ensemble)
            quorums = quorums.narrowed(len(bookies))
        metadata = LedgerMetadata(
            quorums=quorums,
            state=State.OPEN,
            segments=(Segment(0, tuple(bookies[: quorums.ensemble])),),
            digest_type=digest_type,
            password=password,
            custom=custom or {},
            creation_token=self._random.getrandbits(63),
        )
        ledger_id, version = await self.store.create(metadata)
        entries = EntryFormat(ledger_id, digest_type, password)
        return WritableLedger(self, ledger_id, LedgerWriter(metadata, version, entries), password)

    async def recover_ledger(self, ledger_id: int, *, password: bytes) -> ReadableLedger:
        """Fence a ledger, close it if it is open, and return it for reads.

        If the metadata have no digest type, it is CRC32C. Raises ``BookKeeperError``. A later
        attempt may succeed, except after ``NoSuchLedgerError`` and ``UnauthorizedError``.
        """
        found = await self.store.fetch(ledger_id)
        if found is None:
            raise NoSuchLedgerError(f"there is no ledger {ledger_id}")
        metadata, version = found
        check_password(metadata, password)
        entries = EntryFormat(ledger_id, metadata.digest_type or DigestType.CRC32C, password)
        driver = _Driver(self, ledger_id, LedgerRecovery(metadata, version, entries), password)
        driver.carry_out()
        await driver.ended.wait()
        if driver.error is not None:
            raise driver.error
        assert driver.closed is not None
        return ReadableLedger(
            ledger_id,
            driver.closed,
            entries,
            self.connection,
            slow_seconds=self.settings.slow_seconds,
        )

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger. A missing ledger is not an error."""
        await self.store.delete(ledger_id)

    async def draw_bookies(
        self, beside: Collection[str] = (), instead_of: Collection[str] = ()
    ) -> list[str]:
        """Return the bookies that accept writes, in random order, the first ones in as many racks
        as possible: see ``Racks.spread``."""
        bookies = await self.registry.find_writable()
        self._random.shuffle(bookies)
        return self._racks.spread(bookies, beside, instead_of)

    def connection(self, bookie: str) -> BookieConnection:
        """Return the connection to a bookie; make it when it is first needed."""
        found = self._connections.get(bookie)
        if found is None:
            found = BookieConnection(
                bookie, self.registry.find_address, self.settings.connections, self._open_transport
            )
            self._connections[bookie] = found
            self.nursery.start_soon(found.run)
        return found


class _Driver:
    """Executes the effects of one state machine, and reports each outcome to it."""

    def __init__(
        self,
        client: BookKeeper,
        ledger_id: int,
        machine: LedgerWriter | LedgerRecovery,
        password: bytes,
        *,
        is_patient: bool = False,
    ) -> None:
        self.ended = trio.Event()
        self.closed: LedgerMetadata | None = None
        self.error: Exception | None = None
        self.on_confirmed: Callable[[int], None] = lambda entry_id: None
        self.on_failed: Callable[[Exception], None] = lambda error: None
        self._client = client
        self._ledger_id = ledger_id
        self._machine = machine
        self._master_key = make_master_key(password)
        self._is_patient = is_patient
        """True if it waits without a limit for a ZooKeeper that does not answer."""
        self._is_looking = False
        self._looked_at = float("-inf")

    def carry_out(self) -> None:
        """Remove and execute the machine's effects; call this after each call of the machine."""
        effects = self._machine.effects
        while effects:
            self._carry_out(effects.popleft())

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendAdd():
                self._send_add(effect)
            case SendRead():
                self._send_read(effect)
            case Confirmed():
                self.on_confirmed(effect.entry_id)
            case StoreMetadata():
                self._client.nursery.start_soon(self._store, effect)
            case FetchMetadata():
                self._client.nursery.start_soon(self._fetch)
            case FindBookies():
                self._request_bookies()
            case Closed():
                self.closed = effect.metadata
                self.ended.set()
            case Failed():
                self.error = effect.error
                self.on_failed(effect.error)
                self.ended.set()

    def _send_add(self, effect: SendAdd) -> None:
        def on_answer(code: Code | None, _: bytes) -> None:
            self._machine.on_added(effect.bookie, effect.entry_id, code)
            self.carry_out()

        frame = encode_add(self._master_key, effect.entry, is_recovery=effect.is_recovery)
        key = (Operation.ADD, self._ledger_id, effect.entry_id)
        self._client.connection(effect.bookie).send(key, frame, on_answer)

    def _send_read(self, effect: SendRead) -> None:
        machine = self._machine
        assert isinstance(machine, LedgerRecovery)

        def on_answer(code: Code | None, data: bytes) -> None:
            machine.on_read(effect.bookie, effect.entry_id, code, data)
            self.carry_out()

        frame = encode_fencing_read(self._ledger_id, effect.entry_id, self._master_key)
        key = (Operation.READ, self._ledger_id, effect.entry_id)
        self._client.connection(effect.bookie).send(key, (frame,), on_answer)

    async def _store(self, effect: StoreMetadata) -> None:
        try:
            version = await self._client.store.store(
                self._ledger_id, effect.metadata, effect.version
            )
        except ZooKeeperError as error:
            if not self._is_patient:
                self._fail(error)
                return
            version = None
        if version is None:
            self._machine.on_store_doubtful()
        else:
            self._machine.on_stored(version)
        self.carry_out()

    async def _fetch(self) -> None:
        while True:
            try:
                found = await self._client.store.fetch(self._ledger_id)
                break
            except BookKeeperError as error:
                self._fail(error)
                return
            except ZooKeeperError as error:
                if not self._is_patient:
                    self._fail(error)
                    return
                logger.debug("ledger %d: metadata unreachable: %r", self._ledger_id, error)
            await trio.sleep(self._client.settings.look_seconds)
            if self.ended.is_set():
                return
        self._machine.on_fetched(*(found or (None, 0)))
        self.carry_out()

    def _fail(self, error: Exception) -> None:
        self._machine.fail(error)
        self.carry_out()

    def _request_bookies(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._client.nursery.start_soon(self._look_for_bookies)

    async def _look_for_bookies(self) -> None:
        """Look for bookies at intervals, as long as the machine needs some."""
        while True:
            await trio.sleep_until(self._looked_at + self._client.settings.look_seconds)
            self._looked_at = trio.current_time()
            try:
                available = await self._client.draw_bookies(
                    self._machine.kept_bookies, self._machine.lost_bookies
                )
            except ZooKeeperError as error:
                logger.debug("ledger %d: no bookies can be found: %r", self._ledger_id, error)
            else:
                self._machine.on_bookies_found(available)
                self.carry_out()
            if self.ended.is_set() or not self._machine.wants_bookies:
                self._is_looking = False
                return


class WritableLedger:
    """A ledger that this client created and that no other client writes."""

    def __init__(
        self, client: BookKeeper, ledger_id: int, writer: LedgerWriter, password: bytes
    ) -> None:
        self.ledger_id = ledger_id
        self._client = client
        self._writer = writer
        self._driver = _Driver(client, ledger_id, writer, password, is_patient=True)
        self._driver.on_confirmed = self._on_confirmed
        self._driver.on_failed = self._on_failed
        self._waiting: deque[tuple[int, float, OnDone]] = deque()
        client.nursery.start_soon(self._watch)

    @property
    def length(self) -> int:
        """Return the number of bytes of all payloads that were added."""
        return self._writer.length

    @property
    def quorums(self) -> Quorums:
        """Return how many bookies the ledger is on; fewer than requested if it is narrow."""
        return self._writer.quorums

    @property
    def lost_bookies(self) -> list[str]:
        """Return the bookies that get no entries at present. The ledger has too few copies while
        there are some."""
        return self._writer.lost_bookies

    def add_nowait(self, payload: Sequence[Buffer], on_done: OnDone) -> int:
        """Send an entry, and return its id. Raises the error that ended the ledger.

        ``on_done`` is called in the order of the entries: with None when the entry is durable, or
        with the error, after which the ledger may have the entry or not. It is never called before
        this returns. The buffers are copied, because bookies beyond the ack quorum may get the
        entry after it was confirmed.
        """
        entry_id = self._writer.add((b"".join(payload),))
        self._waiting.append((entry_id, trio.current_time(), on_done))
        self._driver.carry_out()
        return entry_id

    async def add(self, payload: Buffer) -> int:
        """Add an entry, and return its id when it is durable."""
        done = trio.Event()
        errors: list[Exception] = []

        def on_done(error: Exception | None) -> None:
            if error is not None:
                errors.append(error)
            done.set()

        entry_id = self.add_nowait((payload,), on_done)
        await done.wait()
        if errors:
            raise errors[0]
        return entry_id

    async def close(self) -> None:
        """Close the ledger when all entries are durable. Raises the error that ended the ledger, if
        there is one."""
        self._writer.close()
        self._driver.carry_out()
        await self._driver.ended.wait()
        if self._driver.error is not None:
            raise self._driver.error

    def abandon(self, error: Exception) -> None:
        """Stop writing without closing the ledger; a recovery finds its end."""
        self._writer.fail(error)
        self._driver.carry_out()

    def _on_confirmed(self, last: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= last:
            waiting.popleft()[2](None)

    def _on_failed(self, error: Exception) -> None:
        while self._waiting:
            self._waiting.popleft()[2](error)

    async def _watch(self) -> None:
        """Abandon the ledger when its oldest unconfirmed entry has waited for too long."""
        limit = self._client.settings.confirm_seconds_max
        while not self._driver.ended.is_set():
            with trio.move_on_after(limit / 10):
                await self._driver.ended.wait()
            if self._waiting and self._waiting[0][1] + limit < trio.current_time():
                self.abandon(
                    NotEnoughBookiesError(
                        f"entry {self._waiting[0][0]} of ledger {self.ledger_id} is not confirmed"
                        f" in {limit:g} s; without {', '.join(self.lost_bookies) or 'an answer'}"
                    )
                )
