"""Divides the file descriptors of a process among its parts.

Owns: how many of them connections may have, and how many the rest of the process keeps.

Invariants:
1. What the journals and tier 2 need is never given to connections: at the bound new connections are
   refused, and those that are there go on.
2. Where the limit is low, the rest keeps half of it, and tier 2 keeps fewer files open.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from segstore.errors import TooFewDescriptorsError

LIMIT_MIN: Final = 128
"""Minimum number of descriptors with which a segment store starts."""
PROCESS_DESCRIPTORS: Final = 64
"""Number of descriptors for the event loop, listeners, locks, logs, and what is opened for a
moment."""
JOURNAL_DESCRIPTORS: Final = 48
"""Number of descriptors for the files of journals that are written, prepared and read, two for
each."""
TIER_2_DESCRIPTORS: Final = 96
"""Number of descriptors for the files, or connections to S3, of calls of tier 2 that run at the
same time."""
KEPT_FILES_MAX: Final = 128
"""Maximum number of files of tier 2 that stay open between calls, with two descriptors each."""
KEPT_FILES_MIN: Final = 4
_UNLIMITED: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """The numbers of descriptors that the parts of a process may open."""

    connections: int
    kept_files: int


def descriptor_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def share_out(limit: int) -> DescriptorShares:
    """Share out ``limit`` descriptors, else ``TooFewDescriptorsError``."""
    if limit < LIMIT_MIN:
        raise TooFewDescriptorsError(
            f"this process may open {limit} files at a time, and a segment store needs {LIMIT_MIN}:"
            " raise the limit (ulimit -n, or LimitNOFILE of the service)"
        )
    needed = PROCESS_DESCRIPTORS + JOURNAL_DESCRIPTORS + TIER_2_DESCRIPTORS
    reserved = min(needed + 2 * KEPT_FILES_MAX, limit // 2)
    kept = min(KEPT_FILES_MAX, max(KEPT_FILES_MIN, (reserved - needed) // 2))
    return DescriptorShares(connections=limit - reserved, kept_files=kept)
