"""Structured logs of the server processes, on stderr.

Owns: the format of a log line. Stdout stays free for data.

A line is one write, so lines of processes that share a file or terminal are not mixed.

Invariants:
1. When the disk under the log file is full, lines are dropped and the server continues. Held by
   ``test_a_full_disk_under_the_log_file_ends_nothing``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog

from pravega_admin.output.log_options import LogFormat, LogLevel
from pravega_admin.output.standard_streams import LossyText


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
