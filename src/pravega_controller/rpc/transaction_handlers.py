"""Handlers of the RPCs about transactions: one function per method.

Owns: the answers of these RPCs. Refusals follow the rule of ``handlers``.
"""

from __future__ import annotations

from pravega_controller.rpc import messages, permissions
from pravega_controller.rpc.rpc import Call, rpc
from pravega_controller.rules.transactions import TransactionState
from pravega_controller.transactions.operations import PingAnswer
from pravega_security.resources import Level
from pravega_wire import controller_pb2 as pb
from pravega_wire.transaction_ids import NO_TIME, halves_of_id, id_of_halves

_PING_STATUS = {
    PingAnswer.OK: pb.PingTxnStatus.OK,
    PingAnswer.LEASE_TOO_LARGE: pb.PingTxnStatus.LEASE_TOO_LARGE,
    PingAnswer.EXECUTION_TIME_EXCEEDED: pb.PingTxnStatus.MAX_EXECUTION_TIME_EXCEEDED,
    PingAnswer.COMMITTED: pb.PingTxnStatus.COMMITTED,
    PingAnswer.ABORTED: pb.PingTxnStatus.ABORTED,
    PingAnswer.UNKNOWN: pb.PingTxnStatus.UNKNOWN,
}

_STATE = {
    None: pb.TxnState.UNKNOWN,
    TransactionState.OPEN: pb.TxnState.OPEN,
    TransactionState.COMMITTING: pb.TxnState.COMMITTING,
    TransactionState.COMMITTED: pb.TxnState.COMMITTED,
    TransactionState.ABORTING: pb.TxnState.ABORTING,
    TransactionState.ABORTED: pb.TxnState.ABORTED,
}


@rpc("createTransaction", permissions.change_stream)
async def create_transaction(call: Call, request: pb.CreateTxnRequest) -> pb.CreateTxnResponse:
    info = request.streamInfo
    begun = await call.controller.transactions.begin(
        info.scope, info.stream, lease_ms=request.lease
    )
    return pb.CreateTxnResponse(
        delegationToken=call.token_for(info, Level.READ_UPDATE),
        txnId=_to_message(begun.identifier),
        activeSegments=[
            messages.segment_range(info.scope, info.stream, segment) for segment in begun.segments
        ],
    )


@rpc("pingTransaction", permissions.change_stream)
async def ping_transaction(call: Call, request: pb.PingTxnRequest) -> pb.PingTxnStatus:
    info = request.streamInfo
    answer = await call.controller.transactions.ping(
        info.scope, info.stream, _to_id(request.txnId), lease_ms=request.lease
    )
    return pb.PingTxnStatus(status=_PING_STATUS[answer])


@rpc("commitTransaction", permissions.change_stream)
async def commit_transaction(call: Call, request: pb.TxnRequest) -> pb.TxnStatus:
    """Record a commit and answer; from then on the commit is certain to be carried out."""
    info = request.streamInfo
    decided = await call.controller.transactions.commit(
        info.scope,
        info.stream,
        _to_id(request.txnId),
        writer_id=request.writerId,
        writer_ms=None if request.timestamp == NO_TIME else request.timestamp,
    )
    return _status(is_decided=decided)


@rpc("abortTransaction", permissions.change_stream)
async def abort_transaction(call: Call, request: pb.TxnRequest) -> pb.TxnStatus:
    """Record an abort and answer; from then on the abort is certain to be carried out."""
    info = request.streamInfo
    decided = await call.controller.transactions.abort(
        info.scope, info.stream, _to_id(request.txnId)
    )
    return _status(is_decided=decided)


@rpc("checkTransactionState", permissions.read_stream)
async def check_transaction_state(call: Call, request: pb.TxnRequest) -> pb.TxnState:
    info = request.streamInfo
    state = await call.controller.transactions.state(info.scope, info.stream, _to_id(request.txnId))
    return pb.TxnState(state=_STATE[state])


@rpc("listCompletedTransactions", permissions.read_stream)
async def list_completed_transactions(
    call: Call, request: pb.ListCompletedTxnRequest
) -> pb.ListCompletedTxnResponse:
    info = request.streamInfo
    outcomes = await call.controller.transactions.completed(info.scope, info.stream)
    return pb.ListCompletedTxnResponse(
        response=[
            pb.TxnResponse(
                txnId=_to_message(bytes.fromhex(outcome.identifier)),
                status=(
                    pb.TxnResponse.COMMITTED if outcome.is_committed else pb.TxnResponse.ABORTED
                ),
            )
            for outcome in outcomes
        ]
    )


def _status(*, is_decided: bool) -> pb.TxnStatus:
    return pb.TxnStatus(status=pb.TxnStatus.SUCCESS if is_decided else pb.TxnStatus.FAILURE)


def _to_id(message: pb.TxnId) -> bytes:
    return id_of_halves(message.highBits, message.lowBits)


def _to_message(identifier: bytes) -> pb.TxnId:
    high, low = halves_of_id(identifier)
    return pb.TxnId(highBits=high, lowBits=low)
