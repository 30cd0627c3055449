"""What can go wrong in the command line, and the exit code that says so.

Owns: the exit codes. An error's text is the one sentence that the user gets to see.

Invariants:
1. Exit codes are an interface: they keep their meaning for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import ClassVar

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


class AdminError(Exception):
    """The command failed."""

    exit_code: ClassVar[int] = EXIT_FAILED


class UsageError(AdminError):
    """The command was asked for something that makes no sense."""

    exit_code = 2


class NotFoundError(AdminError):
    """A scope, stream or segment does not exist."""

    exit_code = 3


class AlreadyExistsError(AdminError):
    """What should be created is there already."""

    exit_code = 4


class UnavailableError(AdminError):
    """A server cannot be reached, or stayed away for too long."""

    exit_code = 5


class ConflictError(AdminError):
    """The state of a scope or stream does not allow it: sealed, not sealed, not empty."""

    exit_code = 6


class StreamSealedError(ConflictError):
    """The stream takes no more events."""


class TimedOutError(AdminError):
    """What was waited for did not come in time."""

    exit_code = 7


class DamageFoundError(AdminError):
    """Stored data are damaged."""

    exit_code = 8


class ConfigurationError(AdminError):
    """A server cannot start as it was told to, or with the data that it finds: starting it again
    the same way is of no use."""

    exit_code = 78


def exit_code_of(error: BaseException) -> int:
    """Say on stderr, in one sentence, what ended a command; the exit code for that."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    sentence = (
        str(error)
        if isinstance(error, AdminError)
        else f"internal error: {type(error).__name__}: {error} (segstore --debug ... shows where)"
    )
    print(f"segstore: {sentence}", file=sys.stderr)
    return error.exit_code if isinstance(error, AdminError) else AdminError.exit_code


def leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """The errors in nested exception groups, or the error itself if it is no group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_errors(inner)
    else:
        yield error
