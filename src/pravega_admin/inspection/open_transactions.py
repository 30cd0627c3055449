"""Finds the transactions of a stream that have no end yet; the interface has no call that does.

Owns: reading them from the controller's own tables, whose format is in
docs/formats/controller-metadata.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pravega_admin.errors import AdminError
from pravega_controller.errors import CorruptMetadataError
from pravega_controller.metadata.records import decode
from pravega_controller.metadata.transaction_records import TransactionRecord
from pravega_controller.metadata.transaction_store import table_index, table_names
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import (
    AuthTokenCheckFailed,
    NoSuchSegment,
    ReadTableEntries,
    TableEntriesRead,
    TableEntry,
    TableIteratorArgs,
    WrongHost,
)
from pravega_wire.errors import ProtocolError
from pravega_wire.names import INTERNAL_SCOPE, TABLES_STREAM, scoped_name
from segstore_client.access.tokens import PLAIN, StoreAccess
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.errors import UnavailableError

REPLY_SECONDS = 30.0
PAGE_ENTRIES = 1_000
PROBED_SEGMENTS = 32
"""Number of segment names, existing or not, that are located to find the table's store."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction as the controller has stored it, and the name of its stream, with its scope."""

    stream: str
    identifier: str
    record: TransactionRecord


def read_open_transactions(
    controller: ControllerClient, scope: str, stream: str
) -> list[OpenTransaction]:
    """Return by id the transactions of a stream that are open, or ended in the last seconds.

    Raises ``UnavailableError`` when a segment store cannot be reached.
    """
    table = table_names("transactions")[table_index(scope, stream)]
    name = scoped_name(scope, stream)
    return [each for each in _read(controller, [table], scope, stream) if each.stream == name]


def read_all_open_transactions(controller: ControllerClient) -> list[OpenTransaction]:
    """Return those of all streams, by stream and id, as ``read_open_transactions`` does."""
    return _read(controller, table_names("transactions"), INTERNAL_SCOPE, TABLES_STREAM)


def _read(
    controller: ControllerClient, tables: Iterable[str], scope: str, stream: str
) -> list[OpenTransaction]:
    """Return the transactions in tables; the names of a stream's segments lead to the stores."""
    addresses = {
        controller.segment_address(scope, stream, number) for number in range(PROBED_SEGMENTS)
    }
    found = []
    access = controller.store_access(INTERNAL_SCOPE, TABLES_STREAM, Purpose.READ)
    try:
        for address in sorted(addresses):
            with access.connect(*address, timeout=REPLY_SECONDS) as connection:
                for table in tables:
                    for entry in read_table(connection, table, access):
                        key = entry.key.key.decode(errors="replace")
                        kind, _, rest = key.partition("/")
                        name, _, identifier = rest.rpartition("/")
                        if kind == "t":
                            record = decode(entry.value, TransactionRecord)
                            found.append(OpenTransaction(name, identifier, record))
    except ProtocolError as error:
        raise UnavailableError(f"transactions cannot be read: {error}") from error
    except CorruptMetadataError as error:
        raise AdminError(f"a transaction's record is damaged: {error}") from error
    return sorted(found, key=lambda one: (one.stream, one.identifier))


def read_table(
    connection: SegmentConnection, table: str, access: StoreAccess = PLAIN
) -> list[TableEntry]:
    """Return all entries of a table; none if it does not exist or is at another segment store."""
    entries: list[TableEntry] = []
    token = b""
    while True:
        reply = connection.call(
            ReadTableEntries(
                connection.next_request_id(),
                table,
                access.token(),
                PAGE_ENTRIES,
                TableIteratorArgs(continuation_token=token),
            )
        )
        if isinstance(reply, NoSuchSegment | WrongHost):
            return []
        if isinstance(reply, AuthTokenCheckFailed):
            raise access.refusal(reply, "no permission to read the controller's tables")
        if not isinstance(reply, TableEntriesRead):
            raise AdminError(f"table {table} answers with {type(reply).__name__}")
        entries += reply.entries
        token = reply.continuation_token
        if not reply.entries or not token:
            return entries
