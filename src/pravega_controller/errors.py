"""The controller's errors: a shallow tree, each kind with one meaning to a caller.

Owns: the errors, named for what the caller may do about them. The service maps each kind to a gRPC
status in one place; a message is a sentence for a person.
"""

from __future__ import annotations


class ControllerError(Exception):
    """The controller refuses the request, or cannot carry it out."""


class InvalidRequestError(ControllerError):
    """The request makes no sense, whatever the state of the stream."""


class NotFoundError(ControllerError):
    """The scope, stream, reader group, segment or epoch does not exist."""


class EpochDroppedError(NotFoundError):
    """The epoch lies so far before the stream's head that its record was removed."""


class ScopeNotFoundError(NotFoundError):
    """The scope does not exist, or is being deleted."""


class StreamNotFoundError(NotFoundError):
    """The stream does not exist."""


class ReaderGroupNotFoundError(NotFoundError):
    """The reader group does not exist, or not under this id."""


class KeyValueTableNotFoundError(NotFoundError):
    """The key-value table does not exist."""


class SubscriberNotFoundError(NotFoundError):
    """The reader group does not subscribe to the stream, or not under this id."""


class GenerationMismatchError(ControllerError):
    """The caller names another id or generation of the reader group than the present one."""


class AlreadyExistsError(ControllerError):
    """The scope or stream exists."""


class StreamSealedError(ControllerError):
    """The stream is sealed, which is final."""


class StreamNotSealedError(ControllerError):
    """The stream must be sealed first."""


class IllegalStateError(ControllerError):
    """The stream or scope is not in a state that allows this now."""


class InvalidStreamCutError(InvalidRequestError):
    """The stream cut does not name segments that cover the key space exactly once, in order."""


class ScalePreconditionError(ControllerError):
    """A segment to seal is not active."""


class StoreUnavailableError(ControllerError):
    """No segment store answered in time; the request may have been carried out or not."""


class OwnedElsewhereError(StoreUnavailableError):
    """Another living controller has not finished its work on the stream in time."""


class StoreAnswerError(ControllerError):
    """A segment store sent a reply that this request cannot have."""


class NoSuchTableError(NotFoundError):
    """The table segment does not exist."""


class TableNotEmptyError(ControllerError):
    """The table segment still holds keys."""


class VersionConflictError(ControllerError):
    """A conditional table update met another version: another writer changed the key."""


class CorruptMetadataError(ControllerError):
    """A stored value is in no format that this controller knows."""
