"""Reads and changes the entries of a key-value table, for a program that blocks.

Owns: the retries of requests. What is asked, and what a reply means, is that of ``TableSteps``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from pravega_wire import commands as wire
from pravega_wire.errors import ProtocolError
from pravega_wire.names import key_value_table_stream, scoped_name, segment_name
from pravega_wire.sessions.steps import run_steps
from segstore_client.backoff import Patience
from segstore_client.blocking.calls import repeat_calls
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.steps.table_steps import (
    ANY_VERSION,
    Entry,
    Steps,
    TableReply,
    TableRequest,
    TableSteps,
)

REPLY_SECONDS = 30.0

T = TypeVar("T")


class BlockingTable:
    """The entries of one key-value table. Use it in one thread.

    A key is its primary part and its secondary part together: ``key_bytes`` bytes.
    """

    def __init__(
        self, controller: ControllerClient, scope: str, table: str, *, patience: float
    ) -> None:
        self.settings = controller.table_settings(scope, table)
        self._controller = controller
        self._scope = scope
        self._stream = key_value_table_stream(table)
        self._name = scoped_name(scope, table)
        self._patience = Patience(patience)
        # The tokens are for the name in the segments' names. A user who may only read gets no token
        # to write.
        self._read_access = controller.store_access(scope, self._stream, Purpose.READ)
        self._write_access = controller.store_access(scope, self._stream, Purpose.READ_WRITE)
        ranges = controller.table_ranges(scope, table)
        self._steps = TableSteps(self._name, self.settings, ranges)

    @property
    def key_bytes(self) -> int:
        """Return the length of keys, in bytes."""
        return self._steps.key_bytes

    def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key; None if there is none."""
        return self.get_all([key])[0]

    def get_all(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each key, in their order; None for a key that has none.

        They are read by several requests if there are many, so not all at one moment.
        """
        return self._run(self._steps.get_all(keys))

    def put(self, key: bytes, value: bytes, *, version: int = ANY_VERSION) -> int:
        """Set the value of a key; return the new version.

        With a ``version``, only if the key has it; with ``ABSENT``, only if there is no such key.
        Raises ``ConflictError`` otherwise.
        """
        return self._run(self._steps.put({key: value}, version))[0]

    def put_all(self, entries: Mapping[bytes, bytes]) -> list[int]:
        """Set the values of keys with one primary key, all or none; return the new versions."""
        return self._run(self._steps.put(entries, ANY_VERSION))

    def remove(self, key: bytes, *, version: int = ANY_VERSION) -> None:
        """Remove a key; with a ``version`` only if it has it.

        Raises ``ConflictError`` otherwise; without a version the key need not exist.
        """
        self._run(self._steps.remove(key, version))

    def entries(self, *, first: bytes = b"", last: bytes = b"") -> Iterator[Entry]:
        """Yield the entries from the key ``first`` to ``last``, both included; all by default.

        Those of one segment come in the order of their keys, so those of one primary key do.
        """
        begin, end = self._steps.bounds(first, last)
        for segment in self._steps.segments_between(begin, end):
            position = begin
            while position:
                page, position = self._run(self._steps.read_page(segment, position, end))
                yield from page

    def _run(self, steps: Steps[T]) -> T:
        return run_steps(steps, self._ask)

    def _ask(self, request: TableRequest) -> TableReply:
        scope, stream, segment = self._scope, self._stream, request.segment
        name = segment_name(scope, stream, segment)
        access = self._write_access if request.writes else self._read_access
        attempts = 0

        def attempt() -> wire.Reply:
            nonlocal attempts
            attempts += 1
            address = self._controller.segment_address(scope, stream, segment)
            with access.connect(*address, timeout=REPLY_SECONDS) as connection:
                reply = connection.call(
                    request.make(connection.next_request_id(), name, access.token())
                )
            if isinstance(reply, wire.AuthTokenCheckFailed):
                raise access.refusal(reply, f"no permission for {self._name}")
            if isinstance(reply, wire.WrongHost):
                raise ProtocolError("the segment is at another store")
            self._patience.renew()
            return reply

        reply = repeat_calls(attempt, self._patience, f"{self._name} could not be reached")
        return TableReply(reply, attempts)
