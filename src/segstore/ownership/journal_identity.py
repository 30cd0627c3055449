"""The identity of a journal: the store that it belongs to, and the last claim that it knows.

Owns: the identity file in a journal's directory, and the check of one journal at a start;
docs/formats/identities.md describes the bytes, docs/adr/0201 explains why. The functions block the
event loop, which has nothing else to do at the start and at the end of a store. Refusals follow the
rules in the package's docstring.

Invariants:
1. When a start is killed while it replaces the identity file, the next start finds the old or the
   new one, and succeeds. Held by
   ``test_whatever_step_a_start_is_killed_at_the_next_one_finishes_it``.
2. When a journal belongs to another store, or has another number, it is refused. Held by
   ``test_another_journal_is_refused`` and ``test_a_foreign_journal_is_refused``.
3. When a journal has a later layout than the version file, that file is an older one, and the start
   is refused. Held by ``test_a_version_file_from_before_a_move_is_refused``.
"""

from __future__ import annotations

import errno
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from segstore.errors import (
    DataDirectoryError,
    DataLogError,
    IdentityError,
    IdentityProblem,
)
from segstore.ownership.data_directory import VERSION_FILE, DataDirectory
from segstore.runtime.durable_files import sync_directory, write_durably
from segstore.runtime.refused_files import reason_of
from segstore.tiers.journal.files import IDENTITY_FILE

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
"""Errors that may not occur again at a later start, so that a store is tried again after them."""

_OWNER: Final = re.compile(r"([0-9a-f]{16})?", re.ASCII)


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
    """The owner in the claim with the number ``turn``."""
    next_owner: str = ""
    """The owner in the claim with the next number, which tier 2 may have; empty if no start has
    tried to make that claim."""
    lock_inode: int = 0
    """Inode number of the lock file that the owner held."""
    is_released: bool = False
    """True if the owner has released its claim."""
    layout: int = 0
    """The data directory's layout when the claim was made; a lower layout is not valid any more."""


def read_journal_identity(path: Path) -> JournalIdentity | None:
    """Return the identity of the journal in a directory; None if it has none. Blocks.

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
    """Return whether ``layout`` is valid in an identity file of a version."""
    return isinstance(layout, int) and version == (2 if layout else 1) and layout >= 0


def write_journal_identity(path: Path, identity: JournalIdentity) -> None:
    """Write a journal's identity, durably. Blocks.

    Raises ``DataLogError`` for errors that may not occur again, such as a full disk, and
    ``DataDirectoryError`` for others.
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
    """Check that a journal belongs to the store, and return its identity. Blocks. Raises
    ``IdentityError`` when it does not."""
    path = directory.journal_path(journal)
    found = read_journal_identity(path)
    tier = f"journal {journal}"
    if found is None and directory.recovered_path(journal).is_dir() and not path.exists():
        raise IdentityError(
            f"{tier} of store {directory.store_id} is not in {path}: a recovery was interrupted;"
            " run segstore recover again, which keeps all data",
            tier=tier,
            problem=IdentityProblem.MISSING,
        )
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
    # If the journal was not opened since logs were moved, its identity may have a lower
    # journal_count.
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


def new_journal_identity(directory: DataDirectory, journal: int) -> JournalIdentity:
    """Return the identity of a new journal, for which tier 2 was never claimed."""
    return JournalIdentity(
        directory.store_id,
        journal,
        directory.journal_count,
        directory.container_count,
        layout=directory.layout,
    )
