"""Records the last batch of each query, in a key-value table of the stream's scope.

Owns: ``CommitLog``. A key is the SHA-256 of a query's name; its value is JSON:

    {"batch": 7, "plan": "<hash>", "rows": 200, "segments": [0, 1], "runs": ["<id>", ...],
     "transactions": {"<task>": "<hexadecimal id>"}, "done": false}

Spark repeats the last batch only, so a query has one record, which each batch replaces: before the
first of its transactions is committed, and only if no other program has replaced it.

Invariants:
1. When a batch is repeated after a crash, it finds the transactions that its first attempt
   recorded, and commits those. Held by
   ``test_a_batch_that_was_recorded_is_finished_by_its_repetition``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pravega_spark.errors import OptionError
from pravega_wire import commands as wire
from pravega_wire.errors import ProtocolError
from pravega_wire.names import key_value_table_stream, segment_name
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.errors import (
    AlreadyExistsError,
    NotFoundError,
    PravegaError,
    UnavailableError,
)

KEY_BYTES = 32
PATIENCE_SECONDS = 60.0
RETRY_SECONDS = 0.2
REPLY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class BatchState:
    """A batch: what tells it from others, and its transactions by task."""

    transactions: dict[int, bytes]
    batch: int
    plan: str
    """Hash of what the batch reads; "" if that is not known."""
    row_count: int
    segments: frozenset[int]
    """Segments of the stream to which the transactions write."""
    runs: tuple[str, ...] = ()
    """The runs of the query that recorded batches, the last one at the end."""
    is_done: bool = False
    """True when all transactions are committed."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The record of a batch, and the version with which to replace it."""

    state: BatchState
    version: int


def query_key(*names: str) -> bytes:
    """Return the key of a query that is named by several texts."""
    return hashlib.sha256("\0".join(("last batch", *names)).encode()).digest()


class CommitLog:
    """Reads and writes the records of queries. Its calls block."""

    def __init__(self, controller: ControllerClient, scope: str, table: str) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = key_value_table_stream(table)
        _ensure_table(controller, scope, table)
        # The token is for the name in the segments' names: the original matches no other.
        self._access = controller.store_access(scope, self._stream, Purpose.READ_WRITE)
        (self._segment_id,) = controller.table_segments(scope, table)
        self._name = segment_name(scope, self._stream, self._segment_id)

    def read(self, key: bytes) -> BatchRecord | None:
        """Return the record of a key, or None."""
        reply = self._request(
            lambda i, token: wire.ReadTable(i, self._name, token, (wire.TableKey(key),))
        )
        assert isinstance(reply, wire.TableRead)
        (entry,) = reply.entries
        if entry.key.version == wire.NOT_EXISTS:
            return None
        return BatchRecord(_decode(bytes(entry.value)), entry.key.version)

    def write(
        self, key: bytes, state: BatchState, *, version: int = wire.NOT_EXISTS
    ) -> BatchRecord | None:
        """Record a batch if the stored record has this version; return the record, or None if not.

        If the reply is lost, the stored record is read and compared with the new one.
        """
        entry = wire.TableEntry(wire.TableKey(key, version), _encode(state))
        reply = self._request(
            lambda i, token: wire.UpdateTableEntries(i, self._name, token, (entry,))
        )
        if isinstance(reply, wire.TableEntriesUpdated):
            return BatchRecord(state, reply.updated_versions[0])
        found = self.read(key)
        return found if found is not None and found.state == state else None

    def _request(self, make: Callable[[int, str], wire.Request]) -> wire.Reply:
        """Send what ``make`` returns for a request id and a token, until it is answered."""
        expected = (
            wire.TableRead,
            wire.TableEntriesUpdated,
            wire.TableKeyBadVersion,
            wire.TableKeyDoesNotExist,
        )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                address = self._controller.segment_address(
                    self._scope, self._stream, self._segment_id
                )
                with self._access.connect(*address, timeout=REPLY_SECONDS) as connection:
                    reply = connection.call(
                        make(connection.next_request_id(), self._access.token())
                    )
                if isinstance(reply, expected):
                    return reply
                if isinstance(reply, wire.AuthTokenCheckFailed):
                    raise self._access.refusal(
                        reply, f"no permission to use the commit table {self._name}"
                    )
                raise ProtocolError(f"unexpected {type(reply).__name__}")
            except PravegaError:
                raise
            except (ProtocolError, OSError) as error:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"the commit table {self._name} cannot be reached: {error}"
                    ) from error
                time.sleep(RETRY_SECONDS)


def _ensure_table(controller: ControllerClient, scope: str, table: str) -> None:
    """Create the table of commit logs unless it exists.

    Who may use the table need not be allowed to create one. Raises ``OptionError`` if it has other
    settings than those of commit logs.
    """
    try:
        found = controller.table_settings(scope, table)
    except NotFoundError:
        with suppress(AlreadyExistsError):
            controller.create_table(
                scope, table, partitions=1, primary_key=KEY_BYTES, secondary_key=0
            )
        found = controller.table_settings(scope, table)
    make = (found.partitions, found.primary_key_bytes, found.secondary_key_bytes)
    if make != (1, KEY_BYTES, 0):
        raise OptionError(
            f"the option commit_table names {scope}/{table}, which is a table of another kind: name"
            " one that does not exist, or the one of an earlier query"
        )


def _encode(state: BatchState) -> bytes:
    value = {
        "batch": state.batch,
        "plan": state.plan,
        "rows": state.row_count,
        "segments": sorted(state.segments),
        "runs": list(state.runs),
        "transactions": {str(task): ident.hex() for task, ident in state.transactions.items()},
        "done": state.is_done,
    }
    return json.dumps(value).encode()


def _decode(value: bytes) -> BatchState:
    found = json.loads(value)
    return BatchState(
        {int(task): bytes.fromhex(text) for task, text in found["transactions"].items()},
        batch=found["batch"],
        plan=found["plan"],
        row_count=found["rows"],
        segments=frozenset(found["segments"]),
        runs=tuple(found["runs"]),
        is_done=found["done"],
    )
