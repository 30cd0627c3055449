"""The controller's errors.

Owns: the errors. Each kind tells the caller what it can do about the error. The service maps each
kind to a gRPC status in one place; a message is a sentence for a person.
"""

from __future__ import annotations


class ControllerError(Exception):
    """The controller refuses the request, or cannot carry it out."""


class UnservedError(ControllerError):
    """The method is in the interface, and this controller does not serve it."""


class UnidentifiedError(ControllerError):
    """It is not known who the caller is."""

    def __init__(self, sentence: str, *, claimed: str | None = None) -> None:
        super().__init__(sentence)
        self.claimed = claimed
        """The user that the caller says it is, for the audit log; None if it names none."""


class UnauthenticatedError(UnidentifiedError):
    """The caller has not proved who it is."""


class UnverifiableError(UnidentifiedError):
    """It cannot be found out now whether the caller is who it says it is."""


class PermissionDeniedError(ControllerError):
    """The caller has no right to do this."""


class InvalidRequestError(ControllerError):
    """The request is invalid in every state of the stream."""


class NotFoundError(ControllerError):
    """The scope, stream, reader group, segment or epoch does not exist."""


class EpochDroppedError(NotFoundError):
    """The epoch lies so far before the stream's head that its record was removed."""


class ScopeNotFoundError(NotFoundError):
    """The scope does not exist, or is being deleted."""


class StreamNotFoundError(NotFoundError):
    """The stream does not exist."""


class StreamWithdrawnError(StreamNotFoundError):
    """A segment store has refused to create the stream, which was removed."""


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


class EarlierStreamError(InvalidStreamCutError):
    """A position is in a segment of an earlier stream of the name, which was deleted."""


class ScalePreconditionError(ControllerError):
    """A segment to seal is not active."""


class StoreUnavailableError(ControllerError):
    """No segment store answered in time; the request may have been carried out or not."""


class StoreDelayedError(StoreUnavailableError):
    """A segment store delays requests, for example until its disk has room; the text says why."""


class StoreSilentError(StoreUnavailableError):
    """A segment store answers nothing, not even the question what its requests wait for."""


class OwnedElsewhereError(StoreUnavailableError):
    """Another living controller works on the stream, and has not finished in time."""


class OutcomeUnknownError(StoreUnavailableError):
    """The request may have been carried out or not: other controllers have changed its object since
    it was begun, and what is stored does not show it any more.
    """


class StoreAnswerError(ControllerError):
    """A segment store sent a reply that does not answer the request."""


class StepRefusedError(ControllerError):
    """A segment store refuses a step of a workflow permanently; the workflow was undone."""


class NoSuchTableError(NotFoundError):
    """The table segment does not exist."""


class TableNotEmptyError(ControllerError):
    """The table segment still holds keys."""


class VersionConflictError(ControllerError):
    """A conditional update found another version of a key: another writer has changed it."""


class UncertainConflictError(VersionConflictError):
    """A conditional update was sent again, as its reply was lost, and found another version: it may
    have been made before another writer changed the key.
    """


class CorruptMetadataError(ControllerError):
    """A stored value is in no format that this controller knows."""
