"""A store that acknowledges nothing before it has room, and says why.

Owns: ``FullStore``, in threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Self

from pravega_wire.codec import encode
from pravega_wire.commands import (
    HELLO,
    AppendSetup,
    AskDelays,
    Command,
    DataAppended,
    DelaysTold,
    Hello,
    Reply,
    SetupAppend,
)
from pravega_wire.connection import Append
from support.threaded_store import ThreadedStore

FULL = "the disk of /data is full"


class FullStore(ThreadedStore):
    """Serves connections side by side; acknowledges no append before ``has_room`` is set."""

    def __init__(self, reasons: Sequence[str] | None = (FULL,)) -> None:
        super().__init__()
        self.has_room = threading.Event()
        self.question_count = 0
        self._reasons = reasons

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        with super().running():
            try:
                yield self
            finally:
                # Answers that wait would hold up the end.
                self.has_room.set()

    def answer(self, command: Command | Append) -> bytes:
        return encode(self._answer(command))

    def _answer(self, command: Command | Append) -> Reply:
        match command:
            case Hello():
                return HELLO
            case AskDelays(request_id):
                self.question_count += 1
                if self._reasons is None:
                    raise EOFError
                return DelaysTold(request_id, tuple(self._reasons))
            case SetupAppend(request_id, writer_id, segment, _):
                return AppendSetup(request_id, segment, writer_id, -(2**63))
            case Append():
                self.has_room.wait(10)
                number = command.last_event_number
                return DataAppended(command.writer_id, number, 0, command.request_id, 9)
            case _:
                raise AssertionError(command)
