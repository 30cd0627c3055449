"""Explains to users why the system refuses a file or directory.

Owns: the words for a full disk, a read-only file system and missing permissions, and what to do.

Invariants:
1. The words fit behind "... cannot be written: ".
"""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path
from typing import Final, TypeGuard

FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM})
REFUSALS: Final = FORBIDDEN | {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


def is_refusal(error: BaseException | None) -> TypeGuard[OSError]:
    """Return whether ``reason_of`` knows what to do."""
    return isinstance(error, OSError) and error.errno in REFUSALS


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
    """Return where the file system is mounted that ``path`` is on, or would be."""
    path = path.absolute()
    while path != path.parent and not path.is_mount():
        path = path.parent
    return path


def _name_of(user: int) -> str:
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"
