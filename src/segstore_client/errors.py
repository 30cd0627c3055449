"""The errors between a client and a store. An error's text is one sentence for the user.

Owns: the classes of errors of all clients.
"""

from __future__ import annotations


class PravegaError(Exception):
    """An action failed; the text tells the reason and the remedy."""


class UsageError(PravegaError):
    """The caller asked for something invalid, such as a malformed address or too long an event."""


class NotFoundError(PravegaError):
    """A scope, stream, segment, reader group or reader of it does not exist."""


class PositionGoneError(NotFoundError):
    """The controller has no record of a position any more: the stream was truncated long ago, or
    made again.
    """


class EarlierStreamError(PositionGoneError):
    """A position is of an earlier stream of the name, which was deleted."""


class TruncatedError(PravegaError):
    """Bytes that a reader wants were deleted by a truncation."""

    head = 0
    """The offset of the first byte that is left."""


class UnreadableEventError(PravegaError):
    """The bytes of an event are no value of the reader's serializer."""


class AlreadyExistsError(PravegaError):
    """The object to be created exists already."""


class UnavailableError(PravegaError):
    """A server cannot be reached, or did not answer for too long."""


class StoreDelayedError(PravegaError):
    """A segment store waits, for example for room on a disk; later the request succeeds."""


class TimedOutError(PravegaError):
    """An answer or an event did not arrive in time."""


class OutOfTimeError(TimedOutError):
    """The time limit of a call ended while servers did not answer."""


class ConflictError(PravegaError):
    """The state of a scope or stream does not allow the request: sealed, not sealed, not empty."""


class StreamSealedError(ConflictError):
    """The stream accepts no more events."""


class TransactionEndedError(ConflictError):
    """A transaction was aborted by its lease, by somebody else, or with its stream."""


class ClosedError(PravegaError):
    """A reader, writer or state is used after it was closed, or outside of its block."""


class WriterClosedError(ClosedError):
    """A writer or transaction is used before or after its block, or after its end."""


class BufferFullError(PravegaError):
    """A writer has no room for an event now, and was not to wait for it."""


class RemovedFromGroupError(PravegaError):
    """The reader is not in its group any more: it was removed, or the group was reset."""


class RefusedError(PravegaError):
    """A server refused a request, and would refuse it each time."""


class NoPermissionError(RefusedError):
    """A server does not know who calls, or does not permit the request to this caller."""


class UntrustedServerError(PravegaError):
    """A server cannot be trusted, or not be reached by TLS: its certificate does not fit."""


class ControllerFailureError(PravegaError):
    """The controller answered with a failure; the same request may succeed later."""


def gave_up(what: str, error: Exception) -> PravegaError:
    """Return the error of a client that stops trying: what failed, and the last error."""
    kind = StoreDelayedError if isinstance(error, StoreDelayedError) else UnavailableError
    return kind(f"{what}: {error}")


class DamagedExportError(PravegaError):
    """A file with an export of a stream is damaged, cut off, or of a later version."""
