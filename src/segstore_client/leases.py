"""The lease of a transaction, and the end of it, for both faces of the client.

Owns: how long a lease lasts, how often it is renewed, and how its end is told.
"""

from __future__ import annotations

import uuid

from segstore_client.errors import TransactionEndedError

LEASE_SECONDS = 30.0
"""Time, in seconds, after which the controller aborts a transaction whose program has died."""
RENEWALS = 3
"""A lease is renewed so many times while it lasts."""
LOOK_SECONDS = 0.01
"""Time, in seconds, after which a client first looks whether a commit is done. Each further time
is twice as long."""
LOOK_SECONDS_MAX = 0.5
ABORT_SECONDS_MAX = 5.0
"""Maximum time, in seconds, to tell the controller of an abort; otherwise the lease ends it."""


def describe_use_after(identifier: uuid.UUID, how: str) -> str:
    """Return the sentence about a transaction that is used after its end."""
    return f"transaction {identifier} {how}"


def describe_end(identifier: uuid.UUID, stream: str) -> TransactionEndedError:
    """Return the error of a transaction that was ended by others."""
    return TransactionEndedError(
        f"transaction {identifier} of {stream} has ended: by its lease, by somebody who aborted it,"
        " or with its stream"
    )
