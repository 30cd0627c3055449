"""The identities of a store's tiers, and the claim by which one process uses tier 2.

Owns: the identity files of journals, the identity and the claims in tier 2, and the checks of all
of them at a start; docs/formats/identities.md describes the bytes, docs/adr/0201 tells why.

Invariants:
1. A store makes the identities of its journals and of tier 2 together, before it takes any data,
   and notes in the data directory when they are all there. From then on nothing is made where one
   is missing.
2. A tier 2 belongs to one store. A store that finds another identity there, before or after it
   writes its own, is refused, and does not become complete.
3. The claims of a journal are numbered. Each start makes one, and the journal knows it before tier
   2 has it. A journal that does not know the last claim is an older state, or a copy whose
   original went on: it is refused.
4. The last claim is taken over where its owner cannot live any more: it held the same lock file,
   or it gave the claim back and the journal was copied after that.
5. An owner whose claim is not the last one any more learns of it when it asks, and is fenced out.
6. What is refused is not changed, but for what the refused store itself has begun there.
7. Files are read and written in the event loop's thread: nothing else runs in it at a start or at
   the end.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import structlog
import trio

from segstore.errors import (
    ChunkNotFoundError,
    DataDirectoryError,
    DataDirectoryInUseError,
    DataLogError,
    FencedOutError,
    IdentityError,
    IdentityProblem,
    StorageConfigurationError,
    StorageError,
    StorageUnreachableError,
)
from segstore.process.data_directory import (
    FORMAT_VERSION,
    VERSION_FILE,
    DataDirectory,
    StoreState,
    new_store_id,
    quote_toml,
)
from segstore.process.older_store import refuse_implausible
from segstore.process.tier_two import NOTE_FILE, read_older_location
from segstore.process.tier_two_vendors import TierTwo
from segstore.runtime.durable_files import make_directory, sync_directory, write_durably
from segstore.runtime.refused_files import is_refusal, reason_of
from segstore.tiers.api import ChunkStorage
from segstore.tiers.journal.files import IDENTITY_FILE, parse_name

STORE_PREFIX: Final = "_system/store$"
TIER_2: Final = "tier 2"
RELEASED: Final = b"released\n"
RELEASE_SECONDS_MAX: Final = 5.0
OWNER_BYTES: Final = 8
LOCK: Final = "identity"
"""Name of the lock of the process that makes identities."""
TURN_SECONDS: Final = 30.0
"""Maximum time, in seconds, that a process waits until another one of the same store has made them.
"""
TURN_PAUSE_SECONDS: Final = 0.02
PASSING_ERRORS: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
    }
)
"""Problems that a later start may not meet any more: a store that served must not stay down for
them."""

_IDENTITY: Final = re.compile(r"identity-([0-9a-f]{32})", re.ASCII)
_CLAIM: Final = re.compile(r"claim-([0-9]+)-([0-9]{10})-([0-9a-f]{16})", re.ASCII)
_OWNER: Final = re.compile(r"([0-9a-f]{16})?", re.ASCII)

logger = structlog.get_logger(__name__)


# ---- A journal's identity ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """The identity that is stored in a journal's directory."""

    store_id: str
    journal: int
    journal_count: int
    container_count: int
    turn: int = 0
    """Number of the last claim that tier 2 is known to have; 0 for none."""
    owner: str = ""
    """The owner in that claim."""
    next_owner: str = ""
    """The owner in the claim with the next number, if tier 2 has it; empty when no start tried."""
    lock_inode: int = 0
    """Inode number of the lock file that the owner held."""
    is_released: bool = False
    """True if the owner gave its claim back."""
    layout: int = 0
    """The data directory's layout when the claim was made: no earlier layout is valid any more."""


def read_journal_identity(path: Path) -> JournalIdentity | None:
    """Return the identity of the journal in a directory; None without one. Blocks.

    Raises ``DataDirectoryError`` when it cannot be read.
    """
    file = path / IDENTITY_FILE
    try:
        fields = tomllib.loads(file.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataDirectoryError(f"{file} cannot be read: {error}") from error
    match fields:
        case {
            "format_version": int(version),
            "store_id": str(store_id),
            "journal": int(journal),
            "journal_count": int(journal_count),
            "container_count": int(container_count),
            "turn": int(turn),
            "owner": str(owner),
            "next_owner": str(next_owner),
            "lock_inode": int(lock_inode),
            "is_released": bool(is_released),
        } if (
            _OWNER.fullmatch(owner)
            and _OWNER.fullmatch(next_owner)
            and _is_layout(version, layout := fields.get("layout", 0))
        ):
            return JournalIdentity(
                store_id,
                journal,
                journal_count,
                container_count,
                turn,
                owner,
                next_owner,
                lock_inode,
                is_released,
                layout,
            )
        case _:
            raise DataDirectoryError(f"{file} is damaged or of another version: {fields}")


def _is_layout(version: int, layout: object) -> bool:
    """Return whether an identity file of that version may name that layout."""
    return isinstance(layout, int) and version == (2 if layout else 1) and layout >= 0


def write_journal_identity(path: Path, identity: JournalIdentity) -> None:
    """Write a journal's identity, durably. Blocks.

    Raises ``DataLogError`` for what may pass, such as a full disk, else ``DataDirectoryError``.
    """
    file = path / IDENTITY_FILE
    unfinished = path / f"{IDENTITY_FILE}.new"
    layout = f"layout = {identity.layout}\n" if identity.layout else ""
    text = (
        "# The identity of a segstore journal. Do not edit, and do not copy a journal alone.\n"
        f"format_version = {2 if identity.layout else 1}\n"
        f'store_id = "{identity.store_id}"\n'
        f"journal = {identity.journal}\n"
        f"journal_count = {identity.journal_count}\n"
        f"container_count = {identity.container_count}\n"
        f"{layout}"
        f"turn = {identity.turn}\n"
        f'owner = "{identity.owner}"\n'
        f'next_owner = "{identity.next_owner}"\n'
        f"lock_inode = {identity.lock_inode}\n"
        f"is_released = {str(identity.is_released).lower()}\n"
    )
    try:
        write_durably(unfinished, text)
        os.replace(unfinished, file)
        sync_directory(path)
    except OSError as error:
        kind = DataLogError if error.errno in PASSING_ERRORS else DataDirectoryError
        raise kind(f"{file} cannot be written: {reason_of(error, file)}") from error


def check_journal(directory: DataDirectory, journal: int) -> JournalIdentity:
    """Check that a journal is the store's. Blocks. Raises ``IdentityError`` when it is not."""
    path = directory.journal_path(journal)
    found = read_journal_identity(path)
    tier = f"journal {journal}"
    if found is None:
        what = f"{IDENTITY_FILE} is not there" if path.is_dir() else "it does not exist"
        raise IdentityError(
            f"{tier} of store {directory.store_id} is expected in {path}, and {what}: mount the"
            " right directory or put the journal back; acknowledged data may be in it alone",
            tier=tier,
            problem=IdentityProblem.MISSING,
        )
    if (found.store_id, found.journal) != (directory.store_id, journal):
        raise IdentityError(
            f"{tier} of store {directory.store_id} is expected in {path}, which has journal"
            f" {found.journal} of store {found.store_id}: put the right journal there",
            tier=tier,
            problem=IdentityProblem.FOREIGN,
        )
    if found.layout > directory.layout:
        raise IdentityError(
            f"{directory.path / VERSION_FILE} is older than {path}: since then logs of containers"
            f" were moved to other journals (layout {found.layout}, not {directory.layout}); put"
            f" back the {VERSION_FILE} that belongs to it",
            tier=tier,
            problem=IdentityProblem.CHANGED,
        )
    # A journal of an earlier layout was not opened since; it may have fewer journals beside it.
    is_same = found.layout == directory.layout
    for name in ("journal_count", "container_count") if is_same else ("container_count",):
        made, said = getattr(found, name), getattr(directory, name)
        if made != said:
            raise IdentityError(
                f"{directory.path / VERSION_FILE} says {name} = {said}, {path} was made with"
                f" {made}: these numbers never change; write {name} = {made} there again",
                tier=tier,
                problem=IdentityProblem.CHANGED,
            )
    return found


# ---- What tier 2 says of itself ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A claim of tier 2 for the containers of one journal."""

    turn: int
    owner: str


@dataclass(slots=True)
class TierTwoIdentity:
    """The identities and claims that a listing of tier 2 shows."""

    store_ids: set[str] = field(default_factory=set)
    claims: dict[int, list[Claim]] = field(default_factory=dict)
    """The claims of each journal, in ascending order."""

    @classmethod
    async def read(cls, chunks: ChunkStorage) -> TierTwoIdentity:
        """List them. Raises ``StorageError``."""
        found = cls()
        for each in await chunks.list_chunks(STORE_PREFIX):
            name = each.name.removeprefix(STORE_PREFIX)
            if match := _IDENTITY.fullmatch(name):
                found.store_ids.add(match[1])
            elif match := _CLAIM.fullmatch(name):
                claim = Claim(int(match[2]), match[3])
                found.claims.setdefault(int(match[1]), []).append(claim)
        for claims in found.claims.values():
            claims.sort()
        return found


def identity_name(store_id: str) -> str:
    """Return the name of the chunk that ties a tier 2 to a store."""
    return f"{STORE_PREFIX}identity-{store_id}"


def claim_name(journal: int, claim: Claim) -> str:
    """Return the name of the chunk of a claim."""
    return f"{STORE_PREFIX}claim-{journal}-{claim.turn:010d}-{claim.owner}"


def refuse_other_store(directory: DataDirectory, where: str, store_ids: set[str]) -> None:
    """Raise ``IdentityError`` when a tier 2 is another store's."""
    if others := sorted(store_ids - {directory.store_id}):
        whose = f"tier 2 of store {directory.store_id}" if directory.store_id else "a tier 2"
        raise IdentityError(
            f"data directory {directory.path} expects {whose} in {where}, which belongs to another"
            f" store ({', '.join(others)}): name the right place, or an empty one for a new store",
            tier=TIER_2,
            problem=IdentityProblem.FOREIGN,
        )


def _missing_tier_2(directory: DataDirectory, where: str) -> IdentityError:
    last = f", where it was before is {directory.tier_2}" if directory.tier_2 != where else ""
    whose = f"store {directory.store_id}" if directory.store_id else "an older version"
    return IdentityError(
        f"data directory {directory.path} expects tier 2 of {whose} in {where}, and it is not"
        f" there{last}: mount what is missing or name the right place; nothing was written",
        tier=TIER_2,
        problem=IdentityProblem.MISSING,
    )


async def check_tier_two(directory: DataDirectory, tier: TierTwo) -> TierTwoIdentity:
    """Check that tier 2 is that of a complete store. Raises ``IdentityError`` when it is not."""
    found = await TierTwoIdentity.read(tier.chunks_under(1))
    if directory.store_id not in found.store_ids:
        refuse_other_store(directory, tier.where, found.store_ids)
        raise _missing_tier_2(directory, tier.where)
    # Another identity beside ours is that of a store which was refused while it was made.
    return found


async def check_claims(
    directory: DataDirectory, tier: TierTwo, journal: int, found: TierTwoIdentity
) -> None:
    """Check that a journal may claim tier 2. Raises ``IdentityError`` when it may not."""
    await _Ownership(directory, tier, journal).check(found)


def renew_journal_identity(
    directory: DataDirectory, journal: int, found: TierTwoIdentity
) -> JournalIdentity:
    """Return the identity with which a journal continues from what tier 2 is now.

    The caller holds the journal's lock, knows that no other copy of the data directory is in use,
    and has made sure that the journal has what tier 2 relies on. A recovery of a lost journal, or
    of a data directory that was moved after its store had been killed, ends with this.
    """
    last = max(found.claims.get(journal, []), default=Claim(0, ""))
    return replace(
        new_journal_identity(directory, journal),
        turn=last.turn,
        owner=last.owner,
        lock_inode=directory.lock_inode(journal),
    )


def new_journal_identity(directory: DataDirectory, journal: int) -> JournalIdentity:
    """Return the identity of a journal for which tier 2 was never claimed."""
    return JournalIdentity(
        directory.store_id,
        journal,
        directory.journal_count,
        directory.container_count,
        layout=directory.layout,
    )


# ---- Making --------------------------------------------------------------------------------------


async def complete_store(directory: DataDirectory, tier: TierTwo) -> DataDirectory:
    """Make the identities that a new store and one of an older version have not, once.

    Goes on where an interrupted making has ended. Raises ``IdentityError`` when what is there
    cannot be the store's, or another error that ends the start.
    """
    if directory.state is StoreState.COMPLETE:
        return directory
    async with _in_turn(directory):
        directory = DataDirectory.read(directory.path)
        if directory.state is StoreState.COMPLETE:
            return directory
        if directory.state is StoreState.NEW:
            await _prepare_new(directory, tier)
        else:
            directory = await _prepare_older(directory, tier)
        _make_journals(directory)
        await _make_identity(directory, tier)
        directory = directory.write(
            store_id=directory.store_id, state=StoreState.COMPLETE, tier_2=tier.where
        )
        with suppress(FileNotFoundError):
            (directory.path / NOTE_FILE).unlink()
        return directory


@asynccontextmanager
async def _in_turn(directory: DataDirectory) -> AsyncIterator[None]:
    """Hold the lock of the process that makes identities; another store of the directory may have
    it first."""
    deadline = trio.current_time() + TURN_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(directory.lock(LOCK, wait_seconds=0))
                break
            except DataDirectoryInUseError:
                if trio.current_time() > deadline:
                    raise
            await trio.sleep(TURN_PAUSE_SECONDS)
        yield


async def _read_while_making(
    directory: DataDirectory, tier: TierTwo, chunks: ChunkStorage
) -> TierTwoIdentity:
    """Return the identity of tier 2, for a store that is not complete. Raises if another store is
    there."""
    found = await TierTwoIdentity.read(chunks)
    if directory.store_id in found.store_ids and len(found.store_ids) > 1:
        # An earlier start was killed when it met that one: do not keep the other store out.
        await chunks.delete(identity_name(directory.store_id))
    refuse_other_store(directory, tier.where, found.store_ids)
    return found


async def _prepare_new(directory: DataDirectory, tier: TierTwo) -> None:
    """Check that a new store finds nothing, or what it has begun to make itself."""
    for journal in range(directory.journal_count):
        path = directory.journal_path(journal)
        if _journal_files(path) and read_journal_identity(path) is None:
            raise IdentityError(
                f"data directory {directory.path} is new, and {path} has journal files already:"
                f" put back the {VERSION_FILE} that belongs to them, or start with another"
                " --data-dir",
                tier=f"journal {journal}",
                problem=IdentityProblem.FOREIGN,
            )
    # A directory that does not exist has nothing of another store.
    await tier.make()
    chunks = tier.chunks_under(1)
    found = await _read_while_making(directory, tier, chunks)
    if found.store_ids:
        return
    if marker := await tier.marked_by():
        refuse_other_store(directory, tier.where, {marker})
    if some := await chunks.list_chunks(""):
        raise IdentityError(
            f"data directory {directory.path} is new, and {tier.where} has chunks already, such as"
            f" {some[0].name}: start with the data directory that they belong to, or name an empty"
            " place for tier 2",
            tier=TIER_2,
            problem=IdentityProblem.FOREIGN,
        )


async def _prepare_older(directory: DataDirectory, tier: TierTwo) -> DataDirectory:
    """Check that tiers without identities are plausibly the store's, and give the store an
    identity."""
    note = read_older_location(directory)
    if not directory.store_id and note is not None:
        directory = replace(directory, store_id=note[1])
    chunks = tier.chunks_under(1)
    found = await _read_while_making(directory, tier, chunks)
    if not found.store_ids:
        if marker := await tier.marked_by():
            refuse_other_store(directory, tier.where, {marker})
        for journal in range(directory.journal_count):
            await refuse_implausible(directory, journal, chunks, tier.where)
        # A store that was never written to may have none yet.
        await tier.make()
    if directory.store_id and directory.format_version == FORMAT_VERSION:
        return directory
    return directory.write(
        store_id=directory.store_id or new_store_id(), state=StoreState.OLDER, tier_2=""
    )


def _journal_files(path: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [name for name in os.listdir(path) if parse_name(name) is not None]
    return []


def _make_journals(directory: DataDirectory) -> None:
    for journal in range(directory.journal_count):
        path = directory.journal_path(journal)
        try:
            make_directory(path)
        except OSError as error:
            raise DataDirectoryError(
                f"journal directory {path} cannot be made: {reason_of(error, path)}"
            ) from error
        if read_journal_identity(path) is None:
            write_journal_identity(path, new_journal_identity(directory, journal))
        check_journal(directory, journal)


async def _make_identity(directory: DataDirectory, tier: TierTwo) -> None:
    """Make tier 2 the store's, unless another store does so at the same time."""
    chunks = tier.chunks_under(1)
    name = identity_name(directory.store_id)
    text = (
        f"This is tier 2 of the segstore store {directory.store_id}, whose data directory was"
        f" {directory.path.absolute()} on {socket.gethostname()}.\n"
    )
    await chunks.write(name, offset=0, data=[text.encode(errors="replace")])
    # Two stores that meet here are both refused: the first one may not have seen the second.
    found = await _read_while_making(directory, tier, chunks)
    if not found.store_ids:
        raise StorageError(f"tier 2 in {tier.where} does not list {name}, which was just written")


# ---- Claims --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnedTier:
    """Tier 2 of a store while it is ours; ``directory`` is what the data directory is by then."""

    directory: DataDirectory
    _ownerships: Mapping[int, _Ownership]

    async def confirm(self, journal: int) -> None:
        """Check that tier 2 is still ours for the containers of a journal, by one listing.

        Raises ``FencedOutError`` when it was taken over, or is not what was claimed, and
        ``StorageError`` when that cannot be found out.
        """
        await self._ownerships[journal].confirm()


@asynccontextmanager
async def owned(
    directory: DataDirectory,
    tier: TierTwo,
    journals: Sequence[int],
    *,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> AsyncIterator[OwnedTier]:
    """Hold tier 2 for the containers of these journals, which are locked, inside the block.

    A store that is not complete is completed first. Raises
    ``IdentityError`` when a tier is not the store's, or is another store's now, and
    ``StorageUnreachableError`` when that cannot be found out.
    """
    try:
        directory = await complete_store(directory, tier)
        ownerships = await _claim_all(directory, tier, journals, random_bytes)
    except (StorageConfigurationError, StorageUnreachableError):
        raise
    except StorageError as error:
        cause = error.__cause__
        if is_refusal(cause):
            reason = reason_of(cause, Path(tier.where))
            raise StorageUnreachableError(
                f"tier 2 in {tier.where} cannot be used: {reason}"
            ) from cause
        raise StorageUnreachableError(f"tier 2 in {tier.where} cannot be used: {error}") from error
    if directory.tier_2 != tier.where:
        async with _in_turn(directory):
            directory = directory.write(
                store_id=directory.store_id, state=StoreState.COMPLETE, tier_2=tier.where
            )
    try:
        yield OwnedTier(directory, dict(zip(journals, ownerships, strict=True)))
    finally:
        with trio.move_on_after(RELEASE_SECONDS_MAX, shield=True):
            for ownership in ownerships:
                await ownership.release()


async def _claim_all(
    directory: DataDirectory,
    tier: TierTwo,
    journals: Sequence[int],
    random_bytes: Callable[[int], bytes],
) -> list[_Ownership]:
    """Check everything, then claim tier 2 for all of these journals."""
    for journal in journals:
        check_journal(directory, journal)
    found = await check_tier_two(directory, tier)
    ownerships = [_Ownership(directory, tier, journal) for journal in journals]
    for ownership in ownerships:
        await ownership.check(found)
    for ownership in ownerships:
        await ownership.claim(random_bytes(OWNER_BYTES).hex())
    return ownerships


class _Ownership:
    """The claim of one journal."""

    def __init__(self, directory: DataDirectory, tier: TierTwo, journal: int) -> None:
        self._directory = directory
        self._tier = tier
        self._journal = journal
        self._path = directory.journal_path(journal)
        self._identity = check_journal(directory, journal)
        self._lock_inode = directory.lock_inode(journal)
        self._last: Claim | None = None
        """The last claim in tier 2 that the journal knows."""
        self._claim = Claim(0, "")
        self._chunks: ChunkStorage | None = None
        self._text = b""

    @property
    def _is_elsewhere(self) -> bool:
        """Return whether the last owner held another lock file: it may hold it still."""
        identity = self._identity
        return identity.lock_inode not in (0, self._lock_inode)

    async def check(self, found: TierTwoIdentity) -> None:
        """Check that the journal may claim tier 2."""
        identity = self._identity
        known = {
            Claim(identity.turn, identity.owner),
            Claim(identity.turn + 1, identity.next_owner),
        }
        claims = found.claims.get(self._journal, [])
        # A claim with the number of ours is that of a refused start, killed before it deleted it.
        strangers = [each for each in claims if each.turn > identity.turn and each not in known]
        if strangers:
            tried = Claim(identity.turn + 1, identity.next_owner)
            if tried in claims and not self._is_elsewhere:
                # An earlier start was killed when it met that one: do not keep the other store out.
                # A copy has the name of the original's claim, which the original may use.
                await self._delete(self._tier.chunks_under(tried.turn), tried)
            raise self._claimed(
                f"is older than tier 2 in {self._tier.where}, which was used since by"
                f" {await self._describe(strangers[-1])}: this is a copy or an earlier state of"
                " what belongs to it; start the right one"
            )
        last = max((each for each in claims if each in known), default=None)
        if last is None and identity.turn > 0:
            raise self._older(
                f"it has no claim since number {claims[-1].turn if claims else 0}, and had number"
                f" {identity.turn}"
            )
        if last is not None and identity.is_released:
            # It was given back in tier 2 first.
            if not (await self._read(last)).endswith(RELEASED):
                raise self._older("it was copied before the last stop of the store")
        elif last is not None and self._is_elsewhere:
            raise self._claimed(
                f"was copied or moved while tier 2 in {self._tier.where} was in use by"
                f" {await self._describe(last)}, which may use it still: start and stop the"
                " store where it was, then move it"
            )
        self._last = last

    async def claim(self, owner: str) -> None:
        """Claim tier 2 under the name ``owner``, or under that of a claim that never came.

        Raises ``IdentityError`` when another start claims it at the same time.
        """
        identity, last = self._identity, self._last
        # A claim that never came may still be on its way: then it has to be ours.
        pending = "" if self._is_elsewhere else identity.next_owner
        if last is None:
            last = Claim(identity.turn, identity.owner)
        elif last.turn > identity.turn:
            pending = ""  # it has come
        self._claim = claim = Claim(last.turn + 1, pending or owner)
        self._identity = replace(
            identity,
            journal_count=self._directory.journal_count,
            layout=self._directory.layout,
            turn=last.turn,
            owner=last.owner,
            next_owner=claim.owner,
            lock_inode=self._lock_inode,
            is_released=False,
        )
        write_journal_identity(self._path, self._identity)
        self._chunks = chunks = self._tier.chunks_under(claim.turn)
        self._text = _text_of(self._directory)
        await chunks.write(claim_name(self._journal, claim), offset=0, data=[self._text])
        claims = (await TierTwoIdentity.read(chunks)).claims.get(self._journal, [])
        await self._refuse_rivals(chunks, claims)
        self._identity = replace(self._identity, turn=claim.turn, owner=claim.owner, next_owner="")
        write_journal_identity(self._path, self._identity)
        for each in claims:
            if each != claim:
                await self._delete(chunks, each)

    async def confirm(self) -> None:
        """Check that there is no later claim. See ``OwnedTier.confirm``."""
        assert self._chunks is not None, "take it first"
        found = await TierTwoIdentity.read(self._chunks)
        claims = found.claims.get(self._journal, [])
        # One with the number of ours is that of a start which met us and is refused, as in `check`.
        if self._claim in claims and claims[-1].turn == self._claim.turn:
            return
        others = [each for each in claims if each != self._claim]
        if others:
            what = f"was taken over by {await self._describe(others[-1])}: stop that store"
        else:
            what = (
                f"has no claim of journal {self._journal} any more: it was emptied or replaced; put"
                " it back as it was"
            )
        raise FencedOutError(
            f"tier 2 in {self._tier.where} {what}. What is in the journals of data directory"
            f" {self._directory.path} stays there"
        )

    async def _refuse_rivals(self, chunks: ChunkStorage, claims: list[Claim]) -> None:
        """Check that no other start claims tier 2 now.

        Two starts that meet here are both refused: the first one may not have seen the second.
        """
        claim = self._claim
        rivals = [each for each in claims if each.turn >= claim.turn and each != claim]
        if rivals or claim not in claims:
            await self._delete(chunks, claim)
            who = await self._describe(rivals[-1]) if rivals else "nobody: it does not list claims"
            raise self._claimed(f"meets another start on tier 2 in {self._tier.where}: {who}")

    async def _delete(self, chunks: ChunkStorage, claim: Claim) -> None:
        try:
            await chunks.delete(claim_name(self._journal, claim))
        except StorageError as error:
            logger.warning("an earlier claim of tier 2 is not deleted", error=str(error))

    async def release(self) -> None:
        """Release the claim: from now on a copy of the data directory may claim tier 2, once."""
        claim = self._claim
        chunks = self._tier.chunks_under(claim.turn)
        name = claim_name(self._journal, claim)
        try:
            await chunks.write(name, offset=len(self._text), data=[RELEASED])
            self._identity = replace(self._identity, is_released=True)
            write_journal_identity(self._path, self._identity)
        except (StorageError, DataLogError, DataDirectoryError) as error:
            logger.warning("the claim of tier 2 is not given back", error=str(error))

    async def _read(self, claim: Claim) -> bytes:
        chunks = self._tier.chunks_under(max(claim.turn, 1))
        name = claim_name(self._journal, claim)
        try:
            length = (await chunks.info(name)).length
            return bytes(await chunks.read(name, offset=0, length=length))
        except ChunkNotFoundError:
            return b""

    async def _describe(self, claim: Claim) -> str:
        text = await self._read(claim)
        first = text.decode(errors="replace").partition("\n")[0]
        return first or f"owner {claim.owner}"

    def _older(self, why: str) -> IdentityError:
        return IdentityError(
            f"tier 2 in {self._tier.where} is older than {self._path}: {why}; put back what belongs"
            " to this data directory",
            tier=TIER_2,
            problem=IdentityProblem.OLDER,
        )

    def _claimed(self, what: str) -> IdentityError:
        return IdentityError(
            f"journal {self._journal} of data directory {self._directory.path} {what}",
            tier=f"journal {self._journal}",
            problem=IdentityProblem.CLAIMED,
        )


def _text_of(directory: DataDirectory) -> bytes:
    path = quote_toml(str(directory.path.absolute()))
    text = f"the store in {path} on {socket.gethostname()}, process {os.getpid()}\n"
    return text.encode(errors="replace")
