"""Structured logs of the server processes, on stderr.

Owns: the format of a log line. Stdout stays free for data.

Invariants:
1. A line is one write, so that processes that share a file or terminal do not mix their lines.
2. A line that cannot be written is dropped: a full disk under the log file must not end a store.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

from pravega_admin.log_options import LogFormat, LogLevel


class LossyText(io.TextIOBase):
    """A text stream that drops text which the stream behind it cannot accept now."""

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


def configure_logs(process: str, *, level: LogLevel, format: LogFormat) -> None:
    """Set up the logs of this process; every line names ``process``."""

    def name_process(
        logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event["process"] = process
        return event

    as_json = format is LogFormat.JSON or (format is LogFormat.AUTO and not sys.stderr.isatty())
    renderer: Any = (
        structlog.processors.JSONRenderer(default=str)
        if as_json
        # Rich tracebacks would print local variables, and with them the data of events.
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    exceptions = [structlog.processors.format_exc_info] if as_json else []
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            name_process,
            *exceptions,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.name)),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, LossyText(sys.stderr))),
        cache_logger_on_first_use=True,
    )
