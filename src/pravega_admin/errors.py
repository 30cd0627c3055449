"""The errors of the command line alone, and the exit code of each.

Owns: the exit codes. An error's text is the one sentence that the user reads.

Invariants:
1. Exit codes are an interface: they keep their meaning for ever.
"""

from __future__ import annotations

import errno
import sys

from pravega_blocking.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    PravegaError,
    TimedOutError,
    UnavailableError,
    UsageError,
)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_ROOM = 75
EXIT_CONFIGURATION = 78
EXIT_INTERRUPTED = 130


class AdminError(PravegaError):
    """The command failed."""


class DamageFoundError(AdminError):
    """Stored data are damaged."""


class NoRoomError(AdminError):
    """A server cannot start because a disk is full: once there is room, the same start succeeds."""


class ConfigurationError(AdminError):
    """A server cannot start as configured, or with the data that it finds: no retry helps."""


_EXIT_CODES: dict[type[BaseException], int] = {
    UsageError: EXIT_USAGE,
    NotFoundError: 3,
    AlreadyExistsError: 4,
    UnavailableError: 5,
    ConflictError: 6,
    TimedOutError: 7,
    DamageFoundError: 8,
    NoRoomError: EXIT_NO_ROOM,
    ConfigurationError: EXIT_CONFIGURATION,
    KeyboardInterrupt: EXIT_INTERRUPTED,
}


def cannot_start(sentence: str, cause: BaseException | None) -> AdminError:
    """Return the error of a server that cannot start because the system refuses files."""
    is_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
    return NoRoomError(sentence) if is_full else ConfigurationError(sentence)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command that failed with an error."""
    for kind in type(error).__mro__:
        if kind in _EXIT_CODES:
            return _EXIT_CODES[kind]
    return EXIT_FAILED


def report_error(error: BaseException) -> int:
    """Print one sentence on stderr about the error of a command; return its exit code."""
    if not isinstance(error, KeyboardInterrupt):
        sentence = str(error)
        if not isinstance(error, PravegaError):
            kind = type(error).__name__
            sentence = f"internal error: {kind}: {sentence} (segstore --debug ... shows where)"
        print(f"segstore: {sentence}", file=sys.stderr)
    return exit_code_of(error)
