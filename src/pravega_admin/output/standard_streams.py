"""The standard output and standard error of a command, which may be broken.

Owns: what a command does when its output has no room, is closed, or was never open.

Invariants:
1. When the disk is full or stdout is closed, the command ends with one sentence and exit code 1.
   Held by ``test_output_on_a_full_disk_is_one_sentence_and_exit_code_1``.
2. When the reader of stdout has ended, as in ``| head``, the command ends without a message. Held
   by ``test_a_reader_that_has_gone_ends_a_command_quietly``.
3. When stderr cannot be written, messages are dropped and the exit code stays the same. Held by
   ``test_messages_that_cannot_be_written_change_no_exit_code``.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO, cast

from pravega_admin.errors import OutputClosedError, OutputError, report_error


def run_command(run: Callable[[], object]) -> None:
    """Run a command with checked standard streams; raise ``SystemExit`` if its output fails."""
    sys.stderr = cast(TextIO, LossyText(_open_missing(sys.stderr)))
    sys.stdout = _check_output(_open_missing(sys.stdout))
    try:
        try:
            run()
        finally:
            sys.stdout.flush()
    except OutputError as error:
        discard_output()
        sys.exit(report_error(error))


def discard_output() -> None:
    """Drop all output from now on, and what is buffered: another attempt would fail again."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


class LossyText(io.TextIOBase):
    """A text stream that drops text which the wrapped stream cannot accept now."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``, or nothing; return its length either way."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write as much of the buffered text as is possible now."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped stream other than writing, such as ``buffer``."""
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        """Return whether the wrapped stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the descriptor of the wrapped stream."""
        return self._stream.fileno()


class _CheckedOutput(io.FileIO):
    """A descriptor whose failures are errors of the output alone."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise OutputClosedError("the reader of the output has gone") from error
        except OSError as error:
            raise OutputError(f"the output cannot be written: {error.strerror}") from error


def _check_output(stream: TextIO) -> TextIO:
    """Return a text stream like ``stream`` whose failures are ``PravegaError``."""
    wrapped = cast(io.TextIOWrapper, stream)
    descriptor = _CheckedOutput(wrapped.fileno(), "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(descriptor),
        encoding=wrapped.encoding,
        errors=wrapped.errors,
        line_buffering=wrapped.line_buffering,
        write_through=wrapped.write_through,
    )


def _open_missing(stream: TextIO | None) -> TextIO:
    """Return a stream; in place of one that was closed before the start, one that fails.

    Otherwise the next file or connection would get its descriptor, and the output with it.
    """
    if stream is not None:
        return stream
    return io.TextIOWrapper(io.FileIO(os.open(os.devnull, os.O_RDONLY), "w", closefd=False))
