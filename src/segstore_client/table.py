"""Reads and changes the entries of a key-value table, without blocking.

Owns: the way of the requests to the segments. ``TableSteps`` makes the requests and interprets the
replies.

Invariants:
1. When a wait for the next entry is cancelled or fails, the iteration goes on with that entry. Held
   by ``test_an_iteration_goes_on_after_a_wait_that_was_cancelled``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from pravega_wire.names import key_value_table_stream, scoped_name
from pravega_wire.sessions.routes import SegmentRange
from pravega_wire.sessions.steps import run_steps_async
from segstore_client.connections.calls import call_blocking
from segstore_client.connections.request_pool import RequestPool
from segstore_client.connections.segment_requests import SegmentRequests
from segstore_client.controller.controller_client import ControllerClient, Purpose, TableSettings
from segstore_client.steps.table_steps import (
    ANY_VERSION,
    Entry,
    Steps,
    TableReply,
    TableRequest,
    TableSteps,
)

T = TypeVar("T")


class Table:
    """The entries of one key-value table. ``Store.table`` makes it; all tasks may use it.

    A key is its primary part and its secondary part together: ``key_bytes`` bytes.
    """

    def __init__(
        self,
        controller: ControllerClient,
        pool: RequestPool,
        scope: str,
        table: str,
        settings: TableSettings,
        ranges: Sequence[SegmentRange],
        *,
        patience: float,
    ) -> None:
        self.settings = settings
        self.name = scoped_name(scope, table)
        self._steps = TableSteps(self.name, settings, ranges)
        # The tokens are for the name in the segments' names.
        stream = key_value_table_stream(table)
        self._requests = SegmentRequests(
            controller, pool, scope, stream, what=self.name, patience=patience
        )
        self._read_access = controller.store_access(scope, stream, Purpose.READ)
        self._write_access = controller.store_access(scope, stream, Purpose.READ_WRITE)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def key_bytes(self) -> int:
        """Return the length of keys, in bytes."""
        return self._steps.key_bytes

    async def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key; None if there is none."""
        return (await self.get_all([key]))[0]

    async def get_all(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each key, in their order; None for a key that has none.

        They are read by several requests if there are many, so not all at one moment.
        """
        return await self._run(self._steps.get_all(keys))

    async def put(self, key: bytes, value: bytes, *, version: int = ANY_VERSION) -> int:
        """Set the value of a key; return the new version.

        With a ``version``, only if the key has it; with ``ABSENT``, only if there is no such key.
        Raises ``ConflictError`` otherwise.
        """
        return (await self._run(self._steps.put({key: value}, version)))[0]

    async def put_all(self, entries: Mapping[bytes, bytes]) -> list[int]:
        """Set the values of keys with one primary key, all or none; return the new versions."""
        return await self._run(self._steps.put(entries, ANY_VERSION))

    async def remove(self, key: bytes, *, version: int = ANY_VERSION) -> None:
        """Remove a key; with a ``version`` only if it has it.

        Raises ``ConflictError`` otherwise; without a version the key need not exist.
        """
        await self._run(self._steps.remove(key, version))

    def entries(self, *, first: bytes = b"", last: bytes = b"") -> AsyncIterator[Entry]:
        """Return an iterator of the entries from the key ``first`` to ``last``, both included; of
        all by default.

        Those of one segment come in the order of their keys, so those of one primary key do.
        """
        begin, end = self._steps.bounds(first, last)
        segments = self._steps.segments_between(begin, end)
        return _Entries(self._read_page, segments, begin, end)

    async def _read_page(self, segment: int, begin: bytes, end: bytes) -> tuple[list[Entry], bytes]:
        return await self._run(self._steps.read_page(segment, begin, end))

    async def _run(self, steps: Steps[T]) -> T:
        return await run_steps_async(steps, self._ask)

    async def _ask(self, request: TableRequest) -> TableReply:
        access = self._write_access if request.writes else self._read_access
        attempts, reply = await self._requests.ask(access, request.segment, request.make)
        return TableReply(reply, attempts)


class _Entries(AsyncIterator[Entry]):
    """An iteration over the entries of segments. A generator would end when it is cancelled.

    ``read_page`` returns a page, and where the next one begins; that is empty behind the last one.
    """

    def __init__(
        self,
        read_page: Callable[[int, bytes, bytes], Awaitable[tuple[Sequence[Entry], bytes]]],
        segments: Iterable[int],
        begin: bytes,
        end: bytes,
    ) -> None:
        self._read_page = read_page
        self._segments = deque(segments)
        self._begin = self._position = begin
        self._end = end
        self._page: deque[Entry] = deque()

    async def __anext__(self) -> Entry:
        while not self._page:
            if not self._segments:
                raise StopAsyncIteration
            page, position = await self._read_page(self._segments[0], self._position, self._end)
            self._page.extend(page)
            if not position:
                self._segments.popleft()
            self._position = position or self._begin
        return self._page.popleft()


async def open_table(
    controller: ControllerClient, pool: RequestPool, scope: str, table: str, *, patience: float
) -> Table:
    """Return a table, after the controller was asked for its settings and segments."""
    patient = controller.with_patience(patience)
    settings = await call_blocking(partial(patient.table_settings, scope, table))
    ranges = await call_blocking(partial(patient.table_ranges, scope, table))
    return Table(controller, pool, scope, table, settings, ranges, patience=patience)
