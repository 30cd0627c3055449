"""``segstore transaction``, or ``segstore txn``: list, describe, commit, abort.

Owns: the arguments and the output of these verbs.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pravega_admin.commands.controllers import ControllerOption, open_controller
from pravega_admin.options import (
    OptionalStreamArgument,
    OutputOption,
    StreamArgument,
    StreamName,
    parse_stream_name,
)
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import OutputFormat, print_fields, print_rows, report
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.errors import ConflictError, NotFoundError, TimedOutError, UsageError

if TYPE_CHECKING:
    from pravega_admin.inspection.open_transactions import OpenTransaction
    from segstore_client.controller.controller_client import ControllerClient

app = Verbs(help="List, inspect and end transactions; txn for short.")

END_SECONDS = 30.0
POLL_SECONDS = 0.05
_COLUMNS = ("id", "state", "epoch", "age_seconds", "lease_seconds", "writer")

TransactionArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="A transaction's id, as clients print it.")
]


@app.command("list")
def list_(
    stream: OptionalStreamArgument = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List a stream's transactions: those without an end, then the latest ones that ended.

    Without a stream, list those of all streams that have no end.
    """
    if stream is not None:
        name = parse_stream_name(stream)
        with open_controller(controller) as client:
            print_rows(_rows(client, name), _COLUMNS, output)
        return
    with open_controller(controller) as client:
        rows = _open_rows_of_all(client)
    print_rows(rows, ("stream", *_COLUMNS), output)


@app.command()
def describe(
    stream: StreamArgument,
    transaction: TransactionArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print what is known of a transaction."""
    name, identifier = parse_stream_name(stream), _parse_id(transaction)
    with open_controller(controller) as client:
        state = _state(client, name, identifier)
        rows = [row for row in _rows(client, name) if row["id"] == _text_of(identifier)]
    fields = rows[0] if rows else _row(identifier, state)
    print_fields({"stream": str(name), **fields, "state": state}, output)


@app.command()
def commit(
    stream: StreamArgument,
    transaction: TransactionArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Commit an open transaction, and wait until it is."""
    _end(stream, transaction, controller, output, "committed")


@app.command()
def abort(
    stream: StreamArgument,
    transaction: TransactionArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Abort an open transaction, and wait until it is."""
    _end(stream, transaction, controller, output, "aborted")


def _end(stream: str, transaction: str, controller: str, output: OutputFormat, wanted: str) -> None:
    name, identifier = parse_stream_name(stream), _parse_id(transaction)
    with open_controller(controller) as client:
        _state(client, name, identifier)
        decide = client.commit_transaction if wanted == "committed" else client.abort_transaction
        if not decide(name.scope, name.stream, identifier):
            state = _state(client, name, identifier)
            raise ConflictError(f"transaction {transaction} of {name} is {state}")
        deadline = time.monotonic() + END_SECONDS
        while (state := _state(client, name, identifier)) != wanted:
            if time.monotonic() > deadline:
                raise TimedOutError(
                    f"transaction {transaction} is still {state} after {END_SECONDS:g} s"
                )
            time.sleep(POLL_SECONDS)
    sentence = f"transaction {transaction} of {name} {wanted}"
    report(sentence, {"stream": str(name), "id": _text_of(identifier), "state": wanted}, output)


def _state(client: ControllerClient, name: StreamName, identifier: bytes) -> str:
    state = client.transaction_state(name.scope, name.stream, identifier)
    if state == "unknown":
        raise NotFoundError(f"stream {name} has no transaction {_text_of(identifier)}")
    return state


def _rows(client: ControllerClient, name: StreamName) -> list[dict[str, Any]]:
    from pravega_admin.inspection.open_transactions import read_open_transactions

    completed = client.completed_transactions(name.scope, name.stream)
    ended = {_text_of(identifier) for identifier, _ in completed}
    found = map(_open_row, read_open_transactions(client, name.scope, name.stream))
    rows = [row for row in found if row["id"] not in ended]
    return rows + [_row(identifier, state) for identifier, state in completed]


def _open_rows_of_all(client: ControllerClient) -> list[dict[str, Any]]:
    """Return a row for each transaction that has no end, of the streams that exist."""
    from pravega_admin.inspection.open_transactions import read_all_open_transactions

    found = read_all_open_transactions(client)
    ended: dict[str, set[str]] = {}
    for stream in {each.stream for each in found}:
        name = parse_stream_name(stream)
        with suppress(NotFoundError):
            completed = client.completed_transactions(name.scope, name.stream)
            ended[stream] = {_text_of(identifier) for identifier, _ in completed}
    rows = [{"stream": each.stream, **_open_row(each)} for each in found if each.stream in ended]
    return [row for row in rows if row["id"] not in ended[row["stream"]]]


def _open_row(transaction: OpenTransaction) -> dict[str, Any]:
    record = transaction.record
    row = _row(bytes.fromhex(transaction.identifier), record.state.value)
    # The clocks of the controller and of this machine may differ.
    row["age_seconds"] = round(max(0.0, time.time() * 1000 - record.created_ms) / 1000, 3)
    row["lease_seconds"] = record.lease_ms / 1000
    row["writer"] = record.writer_id or None
    return row


def _row(identifier: bytes, state: str) -> dict[str, Any]:
    from pravega_wire.names import transaction_epoch

    row: dict[str, Any] = dict.fromkeys(_COLUMNS)
    row |= {"id": _text_of(identifier), "state": state, "epoch": transaction_epoch(identifier)}
    return row


def _text_of(identifier: bytes) -> str:
    """Return an id as the official clients print it: as a UUID."""
    from uuid import UUID

    return str(UUID(bytes=identifier))


def _parse_id(text: str) -> bytes:
    from uuid import UUID

    try:
        return UUID(text).bytes
    except ValueError:
        raise UsageError(f"{text!r} is not the id of a transaction") from None
