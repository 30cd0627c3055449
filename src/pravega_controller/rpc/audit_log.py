"""The audit log: who changed what, from where, and what was refused.

Owns: the lines, which are JSON objects, and their file, which is rotated.

    {"time": "2026-11-27T10:00:00.000Z", "user": "ann", "address": "ipv4:10.0.0.7:1234",
     "method": "deleteStream", "resource": "s/t", "allowed": true}

What is refused has a ``reason``; if that is a wrong proof of who calls, ``user`` is who the caller
claims to be. Reading, and what writers do all the time, such as committing a
transaction, is logged only when it is refused.

Invariants:
1. When a call changes a scope, stream, group or table, or is refused, the file has a line about it.
   No line has an event or a secret. Held by ``test_changes_and_refusals_are_lines``.
2. When the disk is slow, no call waits for it: another thread writes. Held by
   ``test_a_call_does_not_wait_for_the_file``.
3. When a request has long names, its line is short. Held by ``test_long_names_make_short_lines``.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
from collections.abc import Callable
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
FILES_KEPT: Final = 8
LINES_WAITING_MAX: Final = 10_000
"""Maximum number of lines that wait to be written; further ones are lost, and counted."""
ROUTINE: Final = frozenset(
    {
        "createTransaction",
        "pingTransaction",
        "commitTransaction",
        "abortTransaction",
        "noteTimestampFromWriter",
        "removeWriter",
        "updateSubscriberStreamCut",
    }
)
"""Changes that writers and readers make all the time."""
READING: Final = frozenset(
    {
        "getReaderGroupConfig",
        "getKeyValueTableConfiguration",
        "getCurrentSegmentsKeyValueTable",
        "checkTransactionState",
        "listCompletedTransactions",
    }
)
"""Calls that read, but are not declared with ``question=True``: they continue when their caller has
gone."""
VALUE_LENGTH_MAX: Final = 1000
"""Maximum length of a user, a resource and a reason, in characters: a caller that proves nothing
chooses the names in its request."""


NAMING_FIELDS: Final = frozenset({"scope", "stream", "readerGroupName", "readerGroup", "kvtName"})
"""The fields of requests that name what they are about."""


def subject_of(message: Message | None) -> str:
    """Return the names in a request that identify its subject, such as scope and stream."""
    names: list[str] = []
    for field, value in message.ListFields() if message is not None else ():
        if isinstance(value, Message):
            names.append(subject_of(value))
        elif isinstance(value, str) and field.name in NAMING_FIELDS:
            names.append(value)
    return "/".join(name for name in names if name)


class AuditLog:
    """Writes lines to a file; without a path it writes nothing. Use it in a ``with`` block."""

    def __init__(
        self,
        path: Path | None,
        *,
        now_ms: Callable[[], int],
        file_bytes_max: int = FILE_BYTES_MAX,
        files_kept: int = FILES_KEPT,
    ) -> None:
        """Open the file. Raises ``OSError``."""
        self._now_ms = now_ms
        self._lines: queue.Queue[Any] = queue.Queue(LINES_WAITING_MAX)
        self._lost = 0
        self._listener: logging.handlers.QueueListener | None = None
        if path is not None:
            file = _PrivateFile(path, maxBytes=file_bytes_max, backupCount=files_kept)
            file.setFormatter(logging.Formatter("%(message)s"))
            self._listener = logging.handlers.QueueListener(self._lines, file)
            self._file = file

    def __enter__(self) -> AuditLog:
        if self._listener is not None:
            self._listener.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._file.close()

    def note(
        self, method: str, user: str | None, address: str, resource: str, reason: str | None = None
    ) -> None:
        """Write a line; with a ``reason`` for a call that was refused. Never waits."""
        if self._listener is None:
            return
        moment = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "user": None if user is None else user[:VALUE_LENGTH_MAX],
            "address": address,
            "method": method,
            "resource": resource[:VALUE_LENGTH_MAX],
            "allowed": reason is None,
        }
        if reason is not None:
            line["reason"] = reason[:VALUE_LENGTH_MAX]
        if self._lost:
            line["lines_lost_before"] = self._lost
        try:
            self._lines.put_nowait(logging.makeLogRecord({"msg": json.dumps(line)}))
        except queue.Full:
            self._lost += 1
        else:
            self._lost = 0


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """A file that only its owner may read."""

    def _open(self) -> TextIOWrapper:
        def open_private(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_CLOEXEC, 0o600)

        return open(self.baseFilename, "a", encoding="utf-8", opener=open_private)
