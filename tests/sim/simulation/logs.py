"""Keeps the log messages of the code under test for a failure's report, instead of writing them.

Owns: ``logs_kept`` and ``logs_dropped``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import structlog

OnEntry = Callable[[MutableMapping[str, Any]], None]


@contextmanager
def logs_kept(on_entry: OnEntry) -> Iterator[None]:
    """Tell every line that is logged inside the block, and write none."""

    def take(logger: object, method: str, entry: MutableMapping[str, Any]) -> NoReturn:
        on_entry(entry)
        raise structlog.DropEvent

    processors = structlog.get_config()["processors"]
    kept = list(processors)
    # Loggers that are bound already have this very list.
    processors[:] = [take]
    try:
        yield
    finally:
        processors[:] = kept


def logs_dropped() -> AbstractContextManager[None]:
    """Write nothing of what is logged inside the block."""
    return logs_kept(lambda entry: None)
