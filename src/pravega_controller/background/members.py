"""The living controllers, and the choice of one of them for work that must be done once.

Owns: the table of members, this controller's heartbeat in it, and the verdict that another is dead.

    _system/_tables/controller/members    instance id -> MemberRecord

Each controller rewrites its record at each of its beats and reads the records of the others. If a
record stays the same for ``SILENT_BEATS`` by the reader's own clock, the reader takes its
controller for dead: it removes the record, unless the record was written meanwhile, and then takes
over the intents. All controllers have the same interval between beats.

With a heartbeat each second, for example: a controller stops at 10 s. Other controllers take it for
dead at 16 s (``SILENT_BEATS`` = 6). If it continues at 13 s or later (``TRUSTED_BEATS`` = 3), it
does not trust its records in the store any more, and reads or writes them again before it relies on
them. A new controller waits for 3 s after it has joined. So a controller that reads the table at 20
s, and finds no other, knows that it is alone until 23 s. Clocks of different machines are never
compared.

Invariants:
1. When the segment store is away, and no controller can read the table, none takes another for
   dead. Held by ``test_nobody_is_dead_because_the_store_was_away``.
2. When a controller was taken for dead by mistake, and continues, the work of both leaves the
   metadata correct: conditional updates decide which of their writes succeed.
   Held by ``test_a_slow_controller_does_no_harm_to_what_came_after_it``.
3. When a controller was taken for dead by mistake, it does not renew leases that another controller
   has taken over.
   Held by ``test_a_controller_that_was_taken_for_dead_renews_nothing_that_another_holds``.
4. When a controller joins others, it waits for ``TRUSTED_BEATS`` before it does anything.
   Held by ``test_who_starts_at_a_place_with_a_name_knows_who_is_dead``.
5. When several controllers see the same members, they agree on the owner of each key. A key changes
   its owner only when the owner dies or a new owner joins.
   Held by ``test_a_key_moves_only_when_its_owner_goes``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

import msgspec
import structlog
import trio

from pravega_controller.errors import (
    ControllerError,
    CorruptMetadataError,
    StoreUnavailableError,
    VersionConflictError,
)
from pravega_controller.metadata.records import decode, encode
from pravega_controller.store_client.table_client import NOT_EXISTS, Entry, TableClient
from pravega_wire import names

MEMBERS = names.table_name(names.INTERNAL_SCOPE, "controller", "members")
SILENT_BEATS = 6
TRUSTED_BEATS = 3

log = structlog.get_logger(__name__)


class MemberRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A controller that was alive when it wrote this record."""

    host: str
    """The host at which clients reach the controller; it may be valid only on the same machine."""
    port: int
    place: str
    """A name that only one controller has at a time. So a controller that starts with this name
    knows that the earlier controller with the name is dead."""
    beat: int


@dataclass(slots=True)
class _Seen:
    """Another member as it was read last, and the time for which its record has not changed."""

    entry: Entry
    record: MemberRecord
    silent_seconds: float = 0.0
    is_dead: bool = False


class Members:
    """This controller as one of the members.

    ``take_over`` is called with the id of each dead member. ``write_again`` is called after another
    controller took this one for dead, because that one may have removed its records. An earlier
    member at the place of this one's ``record``, or at one of ``other_places``, is dead.
    """

    def __init__(
        self,
        tables: TableClient,
        instance_id: str,
        record: MemberRecord,
        *,
        other_places: Collection[str] = (),
        beat_seconds: float,
        take_over: Callable[[str], Awaitable[None]],
        write_again: Callable[[], Awaitable[None]],
    ) -> None:
        self.instance_id = instance_id
        self._tables = tables
        self._record = record
        self._places = {record.place, *other_places}
        self._version = NOT_EXISTS
        self._beat_seconds = beat_seconds
        self._take_over = take_over
        self._write_again = write_again
        self._others: dict[str, _Seen] = {}
        self._observed = -1.0
        self._began_beat = -1.0
        self._removed: list[str] = []
        """Dead controllers whose records are removed, but whose work is not taken over yet."""
        self._joined = -1.0
        """Time, by trio's clock, since which the others can read this controller's record."""
        self._solitude = 0
        self._solitude_end = -1.0

    # ---- Questions -------------------------------------------------------------------------------

    @property
    def is_trusted(self) -> bool:
        """Return whether no other controller can have concluded that this one is dead."""
        return 0 <= trio.current_time() - self._began_beat < TRUSTED_BEATS * self._beat_seconds

    @property
    def solitude(self) -> int | None:
        """Return the number of the present solitude; None if another controller may be at work.

        A solitude is a period in which no other controller is at work. During one solitude a record
        changes only if this controller changes it.
        """
        return self._solitude if trio.current_time() < self._solitude_end else None

    @property
    def is_seen(self) -> bool:
        """Return whether every other controller must have noticed this one by now."""
        seen_at = self._joined + TRUSTED_BEATS * self._beat_seconds
        return self.is_trusted and trio.current_time() >= seen_at

    def living(self) -> list[MemberRecord]:
        """Return the ids of this controller and of the others that live."""
        others = [seen.record for seen in self._others.values() if not seen.is_dead]
        return [self._record, *sorted(others, key=lambda record: (record.host, record.port))]

    async def is_dead(self, instance_id: str) -> bool:
        """Return whether another controller is dead; a controller that is no member is dead."""
        if instance_id == self.instance_id:
            return False
        if (seen := self._others.get(instance_id)) is not None:
            return seen.is_dead
        return await self._tables.get(MEMBERS, instance_id.encode()) is None

    def owns(self, key: str) -> bool:
        """Return whether this controller owns a key, and therefore does the work for it."""
        living = [identifier for identifier, seen in self._others.items() if not seen.is_dead]
        return choose_owner(key, [self.instance_id, *living]) == self.instance_id

    # ---- Life ------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Join as a member and read the others; an earlier member with the same place is dead."""
        await self._tables.create(MEMBERS)
        await self._beat()
        await self._observe()
        # A record of this place that appears after this read is that of a living controller.
        for seen in self._others.values():
            seen.is_dead = seen.record.place in self._places
        self._record_solitude(self._began_beat)
        if all(seen.is_dead for seen in self._others.values()):
            # There is no other member, so none has to notice this one before it may begin.
            self._joined = -float("inf")
            return
        while not self.is_seen:
            await trio.sleep(self._beat_seconds)
            try:
                await self._beat()
            except StoreUnavailableError as error:
                log.warning("cannot be registered as a member yet", reason=str(error))

    async def run(self) -> None:
        """Write heartbeats and take over the work of dead controllers; runs for ever."""
        while True:
            try:
                await self._beat()
                await self._observe()
                await self._take_over_dead()
            except ControllerError as error:
                log.warning("cannot read the members", reason=str(error))
            await trio.sleep(self._beat_seconds)

    async def _beat(self) -> None:
        began = trio.current_time()
        is_new = self._version == NOT_EXISTS
        record = msgspec.structs.replace(self._record, beat=self._record.beat + 1)
        key = self.instance_id.encode()
        try:
            version = await self._tables.put(MEMBERS, key, encode(record), version=self._version)
        except VersionConflictError:
            # Another controller took this one for dead and removed its record.
            log.warning("taken for dead by another controller; joining again")
            self._began_beat = self._solitude_end = -1.0
            version = await self._tables.put(MEMBERS, key, encode(record))
            is_new = True
            await self._write_again()
        if is_new:
            self._joined = trio.current_time()
        self._version, self._record, self._began_beat = version, record, began

    async def _observe(self) -> None:
        began = trio.current_time()
        entries = [entry async for page in self._tables.pages(MEMBERS) for entry in page]
        now = trio.current_time()
        # While the table could not be read, nothing is known about the others.
        passed = min(now - self._observed, 2 * self._beat_seconds) if self._observed >= 0 else 0.0
        self._observed = now
        present: dict[str, _Seen] = {}
        for entry in entries:
            identifier = entry.key.decode()
            if identifier != self.instance_id and (seen := self._see(entry, passed)) is not None:
                present[identifier] = seen
        self._others = present
        self._record_solitude(began)

    def _record_solitude(self, began: float) -> None:
        """Record whether this controller was alone when this read of the table began."""
        if not all(
            seen.is_dead and seen.record.place in self._places for seen in self._others.values()
        ):
            self._solitude_end = -1.0
            return
        if began >= self._solitude_end:
            self._solitude += 1
        self._solitude_end = min(began, self._began_beat) + TRUSTED_BEATS * self._beat_seconds

    def _see(self, entry: Entry, passed: float) -> _Seen | None:
        known = self._others.get(entry.key.decode())
        if known is None or known.entry.version != entry.version:
            try:
                return _Seen(entry, decode(entry.value, MemberRecord))
            except CorruptMetadataError as error:
                log.error("member is damaged", key=entry.key, reason=str(error))
                return None
        known.silent_seconds += passed
        if not known.is_dead and known.silent_seconds >= SILENT_BEATS * self._beat_seconds:
            known.is_dead = True
            log.warning("a controller is silent", instance=entry.key.decode(), at=known.record.host)
        return known

    async def _take_over_dead(self) -> None:
        """Take over the work of dead members. One living member takes over the work of each.

        Their records are removed first: a controller that lives after all learns this at its next
        beat, and writes its records again. If this controller crashes in between, the next one that
        takes over also takes over from controllers that are no members.
        """
        for identifier, seen in list(self._others.items()):
            if seen.is_dead and self.owns(identifier):
                try:
                    await self._tables.remove(MEMBERS, seen.entry.key, version=seen.entry.version)
                except VersionConflictError:
                    log.info("a controller that was silent lives", instance=identifier)
                else:
                    self._removed.append(identifier)
                self._others.pop(identifier, None)
        while self._removed:
            await self._take_over(self._removed[0])
            del self._removed[0]


def choose_owner(key: str, members: Iterable[str]) -> str:
    """Return the member whose hash with the key is highest (rendezvous hashing)."""

    def weigh(member: str) -> bytes:
        return hashlib.blake2b(f"{member}/{key}".encode(), digest_size=8).digest()

    return max(members, key=weigh)
