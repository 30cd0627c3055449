"""Divides the file descriptors of a process among its parts.

Owns: the number of descriptors for connections, and the number for the rest of the process.

Invariants:
1. When connections use all of their descriptors, the journals and tier 2 still have theirs. Held by
   ``test_connections_never_get_what_the_rest_needs``. A new connection is then refused, and the
   open ones continue. Held by ``test_connections_are_bounded``.
2. When the limit of the process is low, connections get half of it, and tier 2 keeps fewer files
   open. Held by ``test_a_low_limit_leaves_half_to_connections_and_fewer_files_to_tier_2``.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from segstore.errors import TooFewDescriptorsError

LIMIT_MIN: Final = 128
"""Minimum number of descriptors with which a segment store starts."""
PROCESS_DESCRIPTORS: Final = 64
"""Number of descriptors for the event loop, listeners, locks, logs, and files that are open for a
moment."""
JOURNAL_DESCRIPTORS: Final = 48
"""Number of descriptors for journal files. A file that is written, prepared or read needs two."""
TIER_2_DESCRIPTORS: Final = 96
"""Number of descriptors for calls of tier 2 that run at the same time, each with a file or a
connection to S3."""
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
    """Divide ``limit`` descriptors. Raises ``TooFewDescriptorsError`` when they do not suffice."""
    if limit < LIMIT_MIN:
        raise TooFewDescriptorsError(
            f"this process may open {limit} files at a time, and a segment store needs {LIMIT_MIN}:"
            " raise the limit (ulimit -n, or LimitNOFILE of the service)"
        )
    needed = PROCESS_DESCRIPTORS + JOURNAL_DESCRIPTORS + TIER_2_DESCRIPTORS
    reserved = min(needed + 2 * KEPT_FILES_MAX, limit // 2)
    kept = min(KEPT_FILES_MAX, max(KEPT_FILES_MIN, (reserved - needed) // 2))
    return DescriptorShares(connections=limit - reserved, kept_files=kept)
