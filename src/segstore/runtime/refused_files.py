"""Explains to users why the operating system refuses a file or directory.

Owns: the sentences for a full disk, a read-only file system and missing permissions.

Invariants:
1. When the system refuses a file for one of these reasons, the sentence says what to do. Held by
   ``test_the_reason_says_what_to_do``.
2. When a reason follows the words "... cannot be written: ", both together are a sentence. Held by
   ``test_a_lock_file_that_cannot_be_written_is_named``.
"""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path
from typing import Final, TypeGuard

FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM})
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
REFUSALS: Final = FORBIDDEN | FULL | {errno.EROFS}


def is_refusal(error: BaseException | None) -> TypeGuard[OSError]:
    """Return whether ``reason_of`` says what to do about an error."""
    return isinstance(error, OSError) and error.errno in REFUSALS


def is_full(error: BaseException | None) -> TypeGuard[OSError]:
    """Return whether a disk has no room for what was written, or a quota allows no more."""
    return isinstance(error, OSError) and error.errno in FULL


def describe_full(error: OSError, directory: Path) -> str:
    """Return a sentence that says why the disk of a directory has no room. Blocks for a moment."""
    if error.errno == errno.EDQUOT:
        return f"the quota on the disk of {directory} is used up"
    try:
        space = os.statvfs(directory)
    except OSError:
        return f"the disk of {directory} is full"
    # Some file systems create inodes when they are needed, and report 0 in total.
    if space.f_files and not space.f_favail and space.f_bavail:
        return f"the disk of {directory} is full: it has no inode left for another file"
    return f"the disk of {directory} is full"


def reason_of(error: OSError, path: Path) -> str:
    """Return why ``path`` cannot be used, and what to do where that is known. Blocks for a
    moment."""
    if error.errno == errno.ENOSPC:
        return f"the disk mounted on {_mount_of(path)} is full; make room there and start again"
    if error.errno == errno.EDQUOT:
        return f"the quota on {_mount_of(path)} is used up; make room there and start again"
    if error.errno == errno.EROFS:
        return (
            f"the file system mounted on {_mount_of(path)} is read-only; mount it for writing and"
            " start again"
        )
    if error.errno in FORBIDDEN:
        return (
            f"{_name_of(os.geteuid())} has no permission; start as the user that owns the files, or"
            " give them to this one"
        )
    return error.strerror or str(error)


def _mount_of(path: Path) -> Path:
    """Return the directory at which the file system of ``path`` is mounted. The path need not
    exist."""
    path = path.absolute()
    while path != path.parent and not path.is_mount():
        path = path.parent
    return path


def _name_of(user: int) -> str:
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"
