"""Reads and changes the entries of a key-value table, for a program that blocks.

Owns: the way of the requests to the segments. ``TableSteps`` makes the requests and interprets the
replies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from pravega_wire.names import key_value_table_stream, scoped_name
from pravega_wire.sessions.steps import run_steps
from segstore_client.blocking.segments.segment_requests import BlockingSegmentRequests
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.steps.table_steps import (
    ANY_VERSION,
    Entry,
    Steps,
    TableReply,
    TableRequest,
    TableSteps,
)

T = TypeVar("T")


class BlockingTable:
    """The entries of one key-value table. Use it in one thread.

    A key is its primary part and its secondary part together: ``key_bytes`` bytes.
    """

    def __init__(
        self, controller: ControllerClient, scope: str, table: str, *, patience: float
    ) -> None:
        patient = controller.with_patience(patience)
        self.settings = patient.table_settings(scope, table)
        self.name, stream = scoped_name(scope, table), key_value_table_stream(table)
        self._requests = BlockingSegmentRequests(
            controller, scope, stream, what=self.name, patience=patience
        )
        # The tokens are for the name in the segments' names. A user who may only read gets no token
        # to write.
        self._read_access = controller.store_access(scope, stream, Purpose.READ)
        self._write_access = controller.store_access(scope, stream, Purpose.READ_WRITE)
        ranges = patient.table_ranges(scope, table)
        self._steps = TableSteps(self.name, self.settings, ranges)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

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
        access = self._write_access if request.writes else self._read_access
        attempts, reply = self._requests.ask(access, request.segment, request.make)
        return TableReply(reply, attempts)
