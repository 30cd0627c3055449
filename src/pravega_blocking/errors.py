"""The errors between a client and a store. An error's text is one sentence for the user.

Owns: the error tree of all clients.
"""

from __future__ import annotations


class PravegaError(Exception):
    """An action failed; the text tells the reason and the remedy."""


class UsageError(PravegaError):
    """The request to the client makes no sense."""


class NotFoundError(PravegaError):
    """A scope, stream or segment does not exist."""


class AlreadyExistsError(PravegaError):
    """The object to be created exists already."""


class UnavailableError(PravegaError):
    """A server cannot be reached, or did not answer for too long."""


class TimedOutError(PravegaError):
    """An answer or event did not come in time."""


class ConflictError(PravegaError):
    """The state of a scope or stream does not allow this: sealed, not sealed, not empty."""


class StreamSealedError(ConflictError):
    """The stream accepts no more events."""


class RefusedError(PravegaError):
    """A server refused a request, and would do so again."""


class ControllerFailureError(PravegaError):
    """The controller answered with a failure that may pass."""
