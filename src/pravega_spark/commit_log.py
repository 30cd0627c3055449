"""Records the transactions of each batch of a query, in a key-value table of the stream's scope.

Owns: ``CommitLog``. A key is the SHA-256 of query and batch; its value is JSON:

    {"transactions": {"<task>": "<hexadecimal id>"}, "done": false}

Invariants:
1. A batch's record is written before the first of its transactions is committed, and only if there
   is none. So a batch that is repeated after a crash finds the decision of its first attempt.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from pravega_blocking.controller_client import ControllerClient
from pravega_blocking.errors import AlreadyExistsError, PravegaError, UnavailableError
from pravega_spark.errors import OptionError
from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from pravega_wire.errors import ProtocolError
from pravega_wire.names import key_value_table_stream, segment_name

KEY_BYTES = 32
PATIENCE_SECONDS = 60.0
RETRY_SECONDS = 0.2
REPLY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class BatchState:
    """The transactions that count for a batch, by task, and whether all are committed."""

    transactions: dict[int, bytes]
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The record of a batch, and the version with which to replace it."""

    state: BatchState
    version: int


class CommitLog:
    """Reads and writes the records of one query's batches. Its calls block."""

    def __init__(self, controller: ControllerClient, scope: str, table: str, query: str) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = key_value_table_stream(table)
        self._query = query
        try:
            controller.create_table(
                scope, table, partitions=1, primary_key=KEY_BYTES, secondary_key=0
            )
        except AlreadyExistsError:
            _check_make(controller, scope, table)
        (self._segment_id,) = controller.table_segments(scope, table)
        self._name = segment_name(scope, self._stream, self._segment_id)

    def read(self, batch: int) -> BatchRecord | None:
        """Return the record of a batch, or None."""
        key = self._key(batch)
        reply = self._request(lambda i: wire.ReadTable(i, self._name, "", (wire.TableKey(key),)))
        assert isinstance(reply, wire.TableRead)
        (entry,) = reply.entries
        if entry.key.version == wire.NOT_EXISTS:
            return None
        return BatchRecord(_decode(bytes(entry.value)), entry.key.version)

    def write(
        self, batch: int, state: BatchState, *, version: int = wire.NOT_EXISTS
    ) -> BatchRecord | None:
        """Record a batch if its record has this version; return the record, or None if it has not.

        A lost reply leaves no doubt: the stored record is compared with the new one.
        """
        entry = wire.TableEntry(wire.TableKey(self._key(batch), version), _encode(state))
        reply = self._request(lambda i: wire.UpdateTableEntries(i, self._name, "", (entry,)))
        if isinstance(reply, wire.TableEntriesUpdated):
            return BatchRecord(state, reply.updated_versions[0])
        found = self.read(batch)
        return found if found is not None and found.state == state else None

    def remove(self, batch: int) -> None:
        """Remove the record of a batch that can never be repeated."""
        key = wire.TableKey(self._key(batch))
        self._request(lambda i: wire.RemoveTableKeys(i, self._name, "", (key,)))

    def _key(self, batch: int) -> bytes:
        return hashlib.sha256(f"{self._query}\0{batch}".encode()).digest()

    def _request(self, make: Callable[[int], wire.Request]) -> wire.Reply:
        """Send a request to the table's segment store, and repeat it until it is answered."""
        expected = (
            wire.TableRead,
            wire.TableEntriesUpdated,
            wire.TableKeysRemoved,
            wire.TableKeyBadVersion,
            wire.TableKeyDoesNotExist,
        )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                address = self._controller.segment_address(
                    self._scope, self._stream, self._segment_id
                )
                with SegmentConnection(*address, timeout=REPLY_SECONDS) as connection:
                    reply = connection.call(make(connection.next_request_id()))
                if isinstance(reply, expected):
                    return reply
                raise ProtocolError(f"unexpected {type(reply).__name__}")
            except PravegaError:
                raise
            except (ProtocolError, OSError) as error:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"the commit table {self._name} cannot be reached: {error}"
                    ) from error
                time.sleep(RETRY_SECONDS)


def _check_make(controller: ControllerClient, scope: str, table: str) -> None:
    """Raise ``OptionError`` if a table is not one that a commit log makes."""
    found = controller.table_settings(scope, table)
    make = (found.partitions, found.primary_key_bytes, found.secondary_key_bytes)
    if make != (1, KEY_BYTES, 0):
        raise OptionError(
            f"the option commit_table names {scope}/{table}, which is a table of another kind: name"
            " one that does not exist, or the one of an earlier query"
        )


def _encode(state: BatchState) -> bytes:
    tasks = {str(task): ident.hex() for task, ident in state.transactions.items()}
    return json.dumps({"transactions": tasks, "done": state.is_done}).encode()


def _decode(value: bytes) -> BatchState:
    found = json.loads(value)
    tasks = {int(task): bytes.fromhex(text) for task, text in found["transactions"].items()}
    return BatchState(tasks, found["done"])
