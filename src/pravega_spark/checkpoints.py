"""Reads what Spark keeps of a streaming query in its checkpoint, where that is a local directory.

Owns: ``Checkpoint``. Spark writes these files, which this module only reads:

    metadata      {"id": "<the query's id>"}: a new checkpoint has a new id, a moved one keeps it
    offsets/<n>   the plan of batch n, written before the batch begins, with the time of planning
    commits/<n>   written when batch n has ended

The plan of a batch says whether two attempts are at the same batch: a query that crashed repeats
its last batch by the same plan, but one whose checkpoint was replaced by an older copy plans anew,
with other events under the same number.

Invariants:
1. When the directory is the checkpoint of another query, such as one that was left at this path of
   another machine, nothing of it is used.
   Held by ``test_a_checkpoint_of_another_query_says_nothing``.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path


class Checkpoint:
    """The checkpoint at a location, as Spark names it. What cannot be read counts as absent."""

    def __init__(self, location: str) -> None:
        self._is_given = bool(location)
        self._path = _local_path(location)

    def has_batches(self) -> bool:
        """Return whether a query has finished a batch; True if this process cannot see that."""
        if self._path is None:
            return self._is_given
        commits = self._path / "commits"
        with suppress(OSError):
            return any(commits.iterdir())
        return False

    def plan(self, query: str, batch: int) -> str:
        """Return the hash of a batch's plan; "" if it is not here."""
        if self._path is not None and self._is_of(query):
            with suppress(OSError):
                return hashlib.sha256(
                    (self._path / "offsets" / str(batch)).read_bytes()
                ).hexdigest()
        return ""

    def is_beyond(self, query: str, batch: int) -> bool:
        """Return whether a query has ended a batch or planned the next; False if it is not here."""
        if self._path is None or not self._is_of(query):
            return False
        after = self._path / "offsets" / str(batch + 1)
        return after.exists() or (self._path / "commits" / str(batch)).exists()

    def _is_of(self, query: str) -> bool:
        assert self._path is not None
        with suppress(OSError, ValueError, TypeError, KeyError):
            return bool(json.loads((self._path / "metadata").read_bytes())["id"] == query)
        return False


def _local_path(location: str) -> Path | None:
    """Return the directory that a location names; None if it is on another file system."""
    scheme, delimiter, path = location.partition(":")
    if not delimiter:
        return Path(location) if location else None
    # Hadoop leaves percent signs as they are.
    return Path("/" + path.lstrip("/")) if scheme == "file" else None
