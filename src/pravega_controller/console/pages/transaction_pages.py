"""The page of a stream's transactions that have not ended, and their aborts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pravega_controller.console.outcomes import lead_with_outcome, tell_outcome
from pravega_controller.console.pages.stream_pages import STREAM, read_configuration, stream_info
from pravega_controller.console.rendering import path_to
from pravega_controller.console.routes import HtmlPage, PageAnswer, PageRequest, page
from pravega_controller.errors import IllegalStateError, InvalidRequestError
from pravega_wire import controller_pb2 as pb
from pravega_wire import names
from pravega_wire.transaction_ids import NO_TIME, halves_of_id

TRANSACTIONS_MAX: Final = 200
"""Maximum number of transactions on a page."""

ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """A transaction with its times in seconds."""

    identifier: str
    state: str
    age: float
    lease: float


@page("GET", f"{STREAM}/transactions")
async def list_transactions(request: PageRequest) -> PageAnswer:
    """List the transactions of a stream that have not ended."""
    await read_configuration(request)
    controller = request.calls.controller
    scope, stream = request.path["scope"], request.path["stream"]
    found = await controller.transactions.unfinished(scope, stream, TRANSACTIONS_MAX)
    now_ms = controller.now_ms()
    rows = [
        TransactionRow(
            identifier.hex(),
            record.state.value,
            max(0, now_ms - record.created_ms) / 1000,
            record.lease_ms / 1000,
        )
        for identifier, record in found
    ]
    may_abort = await request.calls.may(
        "abortTransaction", pb.TxnRequest(streamInfo=stream_info(request))
    )
    rows.sort(key=lambda row: -row.age)
    values = {"rows": rows, "may_abort": may_abort, "count_max": TRANSACTIONS_MAX}
    done = tell_outcome(request, names.scoped_name(scope, stream))
    return HtmlPage("transactions.html", {**request.path, **values, "done": done})


@page("POST", f"{STREAM}/transactions")
async def abort_transaction(request: PageRequest) -> PageAnswer:
    """Abort a transaction."""
    try:
        identifier = bytes.fromhex(request.form.get("transaction", ""))
    except ValueError:
        identifier = b""
    if len(identifier) != ID_BYTES:
        raise InvalidRequestError("this is no transaction")
    high, low = halves_of_id(identifier)
    answer = await request.calls.call(
        "abortTransaction",
        pb.TxnRequest(
            streamInfo=stream_info(request),
            txnId=pb.TxnId(highBits=high, lowBits=low),
            timestamp=NO_TIME,
        ),
    )
    if answer.status != pb.TxnStatus.SUCCESS:
        raise IllegalStateError("The transaction has ended otherwise.")
    scope, stream = request.path["scope"], request.path["stream"]
    return lead_with_outcome(path_to("streams", scope, stream, "transactions"), "aborted")
