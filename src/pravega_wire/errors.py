"""The errors of the protocol layer: violations by this side, and by the peer."""

from __future__ import annotations

REASON_METADATA = "segstore-reason-bin"
"""The metadata key of a call to the controller whose value, a sentence in UTF-8, says why the
status in the reply is a failure."""
POSITION_METADATA = "segstore-position"
"""The metadata key of a call to the controller whose value says why a position in a stream is not
one any more: ``EARLIER_STREAM`` or ``DROPPED``."""
EARLIER_STREAM = "earlier-stream"
DROPPED = "dropped"


class ProtocolError(Exception):
    """The wire protocol was violated."""


class LocalProtocolError(ProtocolError):
    """The protocol cannot carry the command to send. Nothing was sent."""


class EventTooLongError(LocalProtocolError):
    """An event is longer than one append may be."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the protocol does not allow. The connection is unusable."""


class TruncatedBytesError(Exception):
    """A reader wants bytes that a truncation has deleted. ``head`` is the first offset that is
    left."""

    def __init__(self, offset: int, head: int) -> None:
        super().__init__(offset, head)
        self.offset = offset
        self.head = head
