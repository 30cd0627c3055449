"""The errors of the command line alone, and the exit code of each.

Owns: the exit codes. An error's text is the one sentence that the user reads.

Exit codes are an interface for scripts: the meaning of a code never changes.

Invariants:
1. Every exit code that an error can have is in the help of ``segstore``. Held by
   ``test_help_tells_each_exit_code_that_a_command_can_have``.
"""

from __future__ import annotations

import errno
import sys
from typing import Final

from segstore_client.access.words import AccessWords
from segstore_client.errors import (
    AlreadyExistsError,
    ConflictError,
    DamagedExportError,
    NoPermissionError,
    NotFoundError,
    PravegaError,
    StoreDelayedError,
    TimedOutError,
    UnavailableError,
    UntrustedServerError,
    UsageError,
)

COMMAND_LINE: Final = AccessWords(
    "--user and --password-file", "--password-file or SEGSTORE_PASSWORD_FILE", "--ca"
)
"""The words of the command line for who calls, and whom to trust, for advice in errors."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_ROOM = 75
EXIT_NO_PERMISSION = 77
EXIT_CONFIGURATION = 78
EXIT_INTERRUPTED = 130

EXIT_CODES: dict[int, str] = {
    EXIT_OK: "done",
    EXIT_FAILED: "failed",
    EXIT_USAGE: "wrong usage",
    3: "not found",
    4: "exists already",
    5: "server unavailable",
    6: "not possible in this state",
    7: "timed out",
    8: "stored data are damaged",
    9: "the doctor warns",
    10: "the doctor found faults",
    EXIT_NO_ROOM: "a server cannot start since a disk is full",
    EXIT_NO_PERMISSION: "no permission, or the server does not know who calls",
    EXIT_CONFIGURATION: "a requirement is missing, or a server cannot start as configured or with"
    " the data that it finds",
    EXIT_INTERRUPTED: "interrupted",
}
"""The meanings of all exit codes, as ``segstore --help`` tells them."""


class AdminError(PravegaError):
    """The command failed."""


class DamageFoundError(AdminError):
    """Stored data are damaged."""


class DoctorWarnsError(AdminError):
    """The doctor found nothing worse than warnings."""


class DoctorFaultError(AdminError):
    """The doctor found faults."""


class OutputError(AdminError):
    """The output of the command cannot be written."""


class OutputClosedError(OutputError):
    """The reader of the command's output has ended, so the command ends without a message."""


class NoRoomError(AdminError):
    """A server cannot start because a disk is full: once there is room, the same start succeeds."""


class ConfigurationError(AdminError):
    """A requirement is missing, or a server cannot start as configured: no retry helps."""


class DataLostError(ConfigurationError):
    """A server cannot start because data are damaged or missing: an operator has to decide."""


_EXIT_CODES: dict[type[BaseException], int] = {
    UsageError: EXIT_USAGE,
    NotFoundError: 3,
    AlreadyExistsError: 4,
    UnavailableError: 5,
    UntrustedServerError: 5,
    NoPermissionError: EXIT_NO_PERMISSION,
    ConflictError: 6,
    TimedOutError: 7,
    DamageFoundError: 8,
    DamagedExportError: 8,
    DoctorWarnsError: 9,
    DoctorFaultError: 10,
    OutputClosedError: EXIT_OK,
    NoRoomError: EXIT_NO_ROOM,
    StoreDelayedError: EXIT_NO_ROOM,
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
    if not isinstance(error, KeyboardInterrupt | OutputClosedError):
        sentence = str(error)
        if not isinstance(error, PravegaError):
            kind = type(error).__name__
            sentence = f"internal error: {kind}: {sentence} (segstore --debug ... shows where)"
        print(f"segstore: {sentence}", file=sys.stderr)
    return exit_code_of(error)
