"""The revisions of a state that clients share: one that replaces all before it, or updates.

Owns: the bytes around the states and updates, which the official clients' synchronizers write. What
is in them is the program's; those of a reader group are in ``reader_groups/changes.py``.

    revision = int32 1, state | int32 2, { int32 length, update } ...

Readers begin at the last compaction, whose offset is in the attribute ``REVISION_MARK``, and take
the revisions in order. A revision is one event of the state's segment.
"""

from __future__ import annotations

from collections.abc import Iterable

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.versioned import VersionedReader

_STATE, _UPDATES = 1, 2


def encode_state(data: bytes) -> bytes:
    """Return the revision that replaces all before it."""
    return _STATE.to_bytes(4, "big") + data


def encode_updates(updates: Iterable[bytes]) -> bytes:
    """Return the revision with these updates, which are made together."""
    parts = [len(data).to_bytes(4, "big") + data for data in updates]
    return _UPDATES.to_bytes(4, "big") + b"".join(parts)


def decode_revision(revision: bytes) -> tuple[bool, list[bytes]]:
    """Return whether a revision replaces all before it, and the state, or else its updates.

    Raises ``RemoteProtocolError``.
    """
    reader = VersionedReader(revision)
    kind = reader.read_int()
    if kind == _STATE:
        return True, [revision[reader.position :]]
    if kind != _UPDATES:
        raise RemoteProtocolError(f"a revision of kind {kind}")
    updates = []
    while reader.position < len(revision):
        updates.append(reader.read_bytes(reader.read_int()))
    return False, updates
