"""The errors of a writer that gets another reply than an acknowledgement.

Owns: which replies end a segment, which are tried again, and which stay.
"""

from __future__ import annotations

from pravega_wire import commands as wire
from pravega_wire.errors import ProtocolError
from segstore_client.access.tokens import StoreAccess
from segstore_client.errors import RefusedError


class SegmentEndedError(Exception):
    """The segment accepts no more events: it is sealed, or was deleted.

    A truncation of the stream, or the end of the transaction, deletes segments.
    """


def append_refusal(reply: wire.Reply, segment: str, access: StoreAccess) -> Exception:
    """Return the error of a writer that gets this reply instead of an acknowledgement.

    It is ``SegmentEndedError``, one of ``RETRIED_ERRORS``, after which the writer connects again,
    or one that stays.
    """
    if isinstance(reply, wire.SegmentIsSealed | wire.NoSuchSegment):
        return SegmentEndedError()
    if isinstance(reply, wire.AuthTokenCheckFailed):
        return access.refusal(reply, f"no permission to write to segment {segment}")
    if isinstance(reply, wire.ErrorMessage):
        return RefusedError(f"the segment store refused an append to {segment}: {reply.message}")
    # After WrongHost, InvalidEventNumber and unknown replies, the writer connects again.
    return ProtocolError(f"unexpected {type(reply).__name__}")
