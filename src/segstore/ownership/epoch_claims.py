"""The claim of an epoch on a container's chunks in tier 2, and the notes of owners in their claims.

Owns: ``EpochClaim``: the claim of one owner, its notes that it has recovered and was closed, and
the claims of other owners that it reads; docs/formats/chunk-metadata.md describes the bytes,
docs/adr/0180 and docs/adr/0198 explains why. An owner claims its epoch after the epoch is durable
in the log, and before it reads anything from tier 2.

Invariants:
1. When tier 2 has a claim of a later epoch than the log has, the log is an older copy, and it is
   refused. Held by ``test_an_older_journal_is_refused_however_often_it_is_started``.
2. When an owner has seen a claim of a later epoch, it is fenced out, and changes nothing more. Held
   by ``test_an_owner_that_was_replaced_deletes_nothing`` and
   ``test_who_sees_a_later_owner_never_does_anything_again``.
3. When a listing lacks an owner's own claim, the owner does not use the listing, because it may
   lack claims of other owners, too. Held by
   ``test_an_owner_that_does_not_see_its_own_claim_deletes_nothing``.
4. When an owner is closed, its claim gets the numbers of its last change and of the last operation
   in its log. If the next owner finds fewer changes or a shorter log, it reports the loss. Held by
   ``test_a_damaged_last_frame_after_a_gentle_end_is_damage`` and
   ``test_a_log_that_lacks_what_the_last_owner_knew_of_is_refused``.
5. When the machine was started again, chunks of owners before that are in doubt until one later
   owner has completed its recovery (docs/adr/0198). Held by
   ``test_after_another_start_of_the_machine_a_chunk_counts_as_far_as_is_certain`` and
   ``test_a_recovery_that_cannot_be_noted_is_in_doubt_again``. When an owner
   ends before its claim has bytes, its recovery does not count as completed. Held by
   ``test_an_owner_that_ended_before_its_claim_ends_no_doubt``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final

from segstore.errors import (
    EpochUsedError,
    FencedOutError,
    LogBehindError,
    StorageAbsentError,
    StorageDamagedError,
)
from segstore.ownership.states import OwnerState, Permission
from segstore.ownership.system_chunks import (
    CLAIM,
    RECOVERING,
    SystemChunk,
    parse_system_chunk,
    system_name,
    system_prefix,
)
from segstore.ownership.token import OwnerToken
from segstore.tiers.api import Buffer, ChunkStorage

_RECOVERED: Final = b"recovered\n"
_CLOSED: Final = re.compile(rb"closed ([0-9]+) ([0-9]+)\n")

LastEpoch = Callable[[], Awaitable[int]]
"""Returns the epoch under which a container's log was opened last."""


class EpochClaim:
    """The claim of one owner. ``boot_id`` names the start of the machine on which the owner runs;
    it is None if no power cut can leave an incomplete chunk."""

    def __init__(
        self,
        chunks: ChunkStorage,
        *,
        container_id: int,
        epoch: Callable[[], int],
        boot_id: str | None = None,
        token: OwnerToken | None = None,
    ) -> None:
        self._chunks = chunks
        self._text = b"" if boot_id is None else boot_id.encode() + b"\n"
        self._container_id = container_id
        self._prefix = system_prefix(container_id)
        self._epoch = epoch
        self._token = token or OwnerToken()
        self.doubted_before: float = 0
        """The epoch before which chunks are in doubt: they may have bytes that were not synced
        before a power cut."""
        self.are_known = False
        """True if ``check_log`` has found claims."""
        self.last_operation = 0
        """Number of the last operation in the last owner's log; 0 if that owner was not closed."""
        self._has_noted_recovery = self._is_closed = False
        self._try_count = 0
        self._read_claims: dict[int, bytes] = {}

    @property
    def name(self) -> str:
        """Return the name of the claim's chunk."""
        return system_name(self._prefix, CLAIM, self._epoch(), 0)

    # ---- Before and at the claim -----------------------------------------------------------------

    async def check_log(self, last_epoch: LastEpoch) -> None:
        """Raise ``LogBehindError`` when an epoch later than the log's last one was claimed.

        The claims are listed before the log's epoch is read. In the other order, an owner that
        opens the log and claims its epoch in between would make the log look older than it is. Call
        this before the log is opened under its next epoch: each opening increases the log's epoch,
        so an older log would be accepted after enough openings.
        """
        listed = await self._chunks.list_chunks(f"{self._prefix}{CLAIM}-")
        claims = (parse_system_chunk(self._prefix, each) for each in listed)
        latest = max((each.epoch for each in claims if each), default=0)
        self.are_known = latest > 0
        known = await last_epoch()
        if latest > known:
            raise LogBehindError(
                f"tier 2 of container {self._container_id} was written under epoch {latest}, and"
                f" its log in the journal knows none after {known}: the journal is an older"
                " copy, or was lost"
            )

    async def write(self, put: Callable[[str, int, Sequence[Buffer]], Awaitable[None]]) -> None:
        """Write the claim with ``put``. It is durable on return; ``compare`` has to follow."""
        if self._token.state is OwnerState.ABSENT:  # no log has taken the token's first steps
            self._token.assign()
            self._token.open(self._epoch(), None)
        self._try_count += 1
        await put(self.name, 0, [self._text])

    def own_chunks(self, found: Sequence[SystemChunk]) -> list[SystemChunk]:
        """Return the chunks of this epoch, without the claim. Raises ``EpochUsedError`` when
        another owner has made them."""
        own = [
            each
            for each in found
            if each.epoch == self._epoch() and each.kind not in (CLAIM, RECOVERING)
        ]
        if own and self._try_count == 1:
            raise EpochUsedError(
                f"{own[0].name} is there already: epoch {self._epoch()} of container"
                f" {self._container_id} was used before"
            )
        return own

    def record_claimed(self) -> None:
        """Record that the epoch is claimed and the metadata of earlier owners are read. Raises
        ``FencedOutError`` when a later epoch was seen meanwhile."""
        if self._token.state is OwnerState.FENCED:
            raise self._fenced_out("belong to a later epoch")
        self._token.claim()

    # ---- Other owners ----------------------------------------------------------------------------

    def compare(self, found: Sequence[SystemChunk]) -> None:
        """Check that no chunk has a later epoch. Raises ``FencedOutError`` when one has, and
        ``StorageAbsentError`` when the listing lacks this owner's claim."""
        latest = max((each.epoch for each in found), default=0)
        if latest > self._epoch():
            self._token.fence()
        if self._token.state is OwnerState.FENCED:
            raise self._fenced_out(f"belong to a later epoch ({latest})")
        self._refuse_hidden(found)

    def require(self, permission: Permission) -> None:
        """Raise ``FencedOutError`` when the owner does not have a permission any more."""
        if not self._token.may(permission):
            raise self._fenced_out(
                "belong to a later epoch"
                if self._token.state is OwnerState.FENCED
                else f"have an owner that is {self._token.state.value}"
            )

    def _fenced_out(self, why: str) -> FencedOutError:
        return FencedOutError(
            f"the chunks of container {self._container_id} {why}: epoch {self._epoch()} changes"
            " nothing more"
        )

    def _refuse_hidden(self, found: Sequence[SystemChunk]) -> None:
        if not any((each.kind, each.epoch) == (CLAIM, self._epoch()) for each in found):
            raise StorageAbsentError(
                f"tier 2 does not list {self.name}, which was written: it was emptied"
                " or replaced, or does not list all that it has"
            )

    # ---- Notes -----------------------------------------------------------------------------------

    @property
    def has_notes(self) -> bool:
        """Return whether this owner writes notes to its claim."""
        return bool(self._text)

    async def note_recovered(self) -> None:
        """Note in the claim that the lengths of all chunks in doubt are known."""
        await self._chunks.write(self.name, offset=len(self._text), data=[_RECOVERED])
        self._has_noted_recovery = True

    async def note_closed(self, sequence: int, last_operation: int) -> None:
        """Note in the claim, once, that this owner has ended, with the numbers of its last change
        and operation."""
        if self._is_closed:
            return
        self._is_closed = True
        length = len(self._text) + len(_RECOVERED) * self._has_noted_recovery
        note = b"closed %d %d\n" % (sequence, last_operation)
        await self._chunks.write(self.name, offset=length, data=[note])

    def refuse_shorter_log(self, known_operation: int) -> None:
        """Raise ``LogBehindError`` when the last owner noted a later operation."""
        if known_operation < self.last_operation:
            raise LogBehindError(
                f"the log of container {self._container_id} ends with operation"
                f" {known_operation}, and its last owner ended with {self.last_operation}:"
                " the journal is an older copy"
            )

    # ---- Notes of others -------------------------------------------------------------------------

    def doubts(self, epoch: int) -> bool:
        """Return whether a chunk of this epoch may have bytes that were not synced."""
        return epoch < self.doubted_before

    async def find_doubted(self, found: Sequence[SystemChunk]) -> None:
        """Find the epoch before which chunks are in doubt. That is the epoch of the first claim
        since the machine was started; if an owner has completed its recovery since then, no chunk
        is in doubt."""
        self.doubted_before = await self._find_doubted(found)

    async def _find_doubted(self, found: Sequence[SystemChunk]) -> float:
        self._read_claims.clear()
        doubted_before = inf
        claims = [each for each in found if each.kind == CLAIM and each.length and self._text]
        for each in sorted(claims, key=lambda each: each.order, reverse=True):
            data = await self._read(each)
            if b"\n" not in data:
                continue  # its owner ended while it wrote the claim, and has changed nothing
            if not data.startswith(self._text):
                return doubted_before
            # A partly written note is enough: the recovery was durable before the note was written.
            if data.startswith(_RECOVERED[:1], len(self._text)):
                return 0
            doubted_before = each.epoch
        return doubted_before if claims else 0

    async def refuse_lost_snapshot(self, found: Sequence[SystemChunk]) -> None:
        """Raise ``StorageDamagedError`` if an owner has noted the end of its recovery. Call this
        when no snapshot was found: that owner had written one."""
        for each in found:
            if each.kind != CLAIM or not each.length:
                continue
            if _RECOVERED in await self._read(each):
                raise StorageDamagedError(
                    f"{each.name} tells of a recovery that ended, and no snapshot of the chunk"
                    f" metadata of container {self._container_id} is whole"
                )

    async def closed_at(self, found: Sequence[SystemChunk], epoch: int) -> int | None:
        """Return the number of the last change of an epoch's owner; None if it was not closed."""
        claim = next((each for each in found if (each.kind, each.epoch) == (CLAIM, epoch)), None)
        closed = _CLOSED.search(await self._read(claim)) if claim and claim.length else None
        if closed is None:
            return None
        self.last_operation = int(closed[2])
        return int(closed[1])

    async def _read(self, each: SystemChunk) -> bytes:
        if each.epoch not in self._read_claims:
            data = await self._chunks.read(each.name, offset=0, length=each.length)
            self._read_claims[each.epoch] = bytes(data)
        return self._read_claims[each.epoch]
