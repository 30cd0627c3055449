"""Each RPC's row in the table of permissions, and the claims of tokens."""

from __future__ import annotations

from typing import Any

import pytest

from pravega_controller.rpc import service
from pravega_controller.rpc.permissions import claims_of
from pravega_controller.rpc.rpc import RPCS
from pravega_security.resources import Level
from pravega_wire import controller_pb2 as pb

R, RU, NONE = Level.READ, Level.READ_UPDATE, Level.NONE
ROOT = "prn::/"
SCOPE = "prn::/scope:s"
STREAM = f"{SCOPE}/stream:t"
TABLE = f"{SCOPE}/key-value-table:k"
INFO = pb.StreamInfo(scope="s", stream="t")
WRITING = pb.StreamInfo(
    scope="s", stream="t", accessOperation=pb.StreamInfo.AccessOperation.READ_WRITE
)
CUT = pb.StreamCut(streamInfo=INFO)
GROUP = pb.ReaderGroupConfiguration(scope="s", readerGroupName="g")
IN_SCOPE = pb.ScopeInfo(scope="s")
SEGMENT = pb.SegmentId(streamInfo=INFO)
TRANSACTION = pb.TxnRequest(streamInfo=INFO)
GROUP_NAME = pb.ReaderGroupInfo(scope="s", readerGroup="g")
TABLE_NAME = pb.KeyValueTableInfo(scope="s", kvtName="k")

ROWS: dict[str, tuple[Any, str, Level]] = {
    "getControllerToBucketMapping": (pb.ControllerToBucketMappingRequest(), ROOT, R),
    "createScope": (IN_SCOPE, ROOT, RU),
    "deleteScope": (IN_SCOPE, ROOT, RU),
    "deleteScopeRecursive": (IN_SCOPE, ROOT, RU),
    "listScopes": (pb.ScopesRequest(), ROOT, R),
    "checkScopeExists": (IN_SCOPE, SCOPE, R),
    "listStreamsInScope": (pb.StreamsInScopeRequest(scope=IN_SCOPE), SCOPE, R),
    "listStreamsInScopeForTag": (pb.StreamsInScopeWithTagRequest(scope=IN_SCOPE), SCOPE, R),
    "listKeyValueTablesInScope": (pb.KVTablesInScopeRequest(scope=IN_SCOPE), SCOPE, R),
    "createStream": (pb.StreamConfig(streamInfo=INFO), SCOPE, RU),
    "checkStreamExists": (INFO, STREAM, R),
    "getStreamConfiguration": (INFO, STREAM, R),
    "updateStream": (pb.StreamConfig(streamInfo=INFO), STREAM, RU),
    "truncateStream": (CUT, STREAM, RU),
    "sealStream": (INFO, STREAM, RU),
    "deleteStream": (INFO, STREAM, RU),
    "getCurrentSegments": (INFO, STREAM, R),
    "getEpochSegments": (pb.GetEpochSegmentsRequest(streamInfo=INFO), STREAM, R),
    "getSegments": (pb.GetSegmentsRequest(streamInfo=WRITING), STREAM, RU),
    "getSegmentsImmediatelyFollowing": (SEGMENT, STREAM, R),
    "getSegmentsImmediatlyFollowing": (SEGMENT, STREAM, R),
    "getSegmentsBetween": (pb.StreamCutRange(streamInfo=INFO), STREAM, R),
    "isSegmentValid": (SEGMENT, STREAM, R),
    "isStreamCutValid": (CUT, STREAM, R),
    "getURI": (SEGMENT, STREAM, R),
    "getDelegationToken": (WRITING, STREAM, RU),
    "scale": (pb.ScaleRequest(streamInfo=INFO), STREAM, RU),
    "checkScale": (pb.ScaleStatusRequest(streamInfo=INFO), STREAM, R),
    "createTransaction": (pb.CreateTxnRequest(streamInfo=INFO), STREAM, RU),
    "pingTransaction": (pb.PingTxnRequest(streamInfo=INFO), STREAM, RU),
    "commitTransaction": (TRANSACTION, STREAM, RU),
    "abortTransaction": (TRANSACTION, STREAM, RU),
    "checkTransactionState": (TRANSACTION, STREAM, R),
    "listCompletedTransactions": (pb.ListCompletedTxnRequest(streamInfo=INFO), STREAM, R),
    "noteTimestampFromWriter": (pb.TimestampFromWriter(position=CUT), STREAM, RU),
    "removeWriter": (pb.RemoveWriterRequest(stream=INFO), STREAM, RU),
    "createReaderGroup": (GROUP, SCOPE, R),
    "getReaderGroupConfig": (GROUP_NAME, SCOPE, R),
    "updateReaderGroup": (GROUP, SCOPE, R),
    "deleteReaderGroup": (GROUP_NAME, SCOPE, R),
    "listSubscribers": (INFO, STREAM, RU),
    "updateSubscriberStreamCut": (pb.SubscriberStreamCut(streamCut=CUT), STREAM, RU),
    "createKeyValueTable": (pb.KeyValueTableConfig(scope="s", kvtName="k"), SCOPE, RU),
    "getCurrentSegmentsKeyValueTable": (TABLE_NAME, TABLE, R),
    "getKeyValueTableConfiguration": (TABLE_NAME, TABLE, R),
    "deleteKeyValueTable": (TABLE_NAME, TABLE, RU),
}
"""A request of each RPC, and the level that it needs for a resource."""
ANYBODY = {"getControllerServerList", "Check"}


class Rights(dict[str, Level]):
    """A caller with levels by resource."""

    def authorize(self, resource: str) -> Level:
        return self.get(resource, Level.NONE)


def test_each_rpc_has_a_row_in_this_table() -> None:
    assert service.HANDLER_MODULES
    assert RPCS.keys() == ROWS.keys() | ANYBODY


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_level_too_low_is_refused_by_each_rpc(name: str) -> None:
    request, resource, level = ROWS[name]
    need = RPCS[name].permission(request, R)
    assert need is not None
    assert need.is_met_by(Rights({resource: level}))
    assert not need.is_met_by(Rights({resource: Level(level - 1)}))
    assert not need.is_met_by(Rights({resource + "t": RU, resource[:-1]: RU}))


@pytest.mark.parametrize("name", sorted(ANYBODY))
def test_anybody_may_ask_for_controllers_and_health(name: str) -> None:
    assert RPCS[name].permission(None, R) is None


def test_readers_need_more_where_groups_are_not_theirs() -> None:
    need = RPCS["createReaderGroup"].permission(GROUP, RU)
    assert need is not None
    assert need.level is RU


@pytest.mark.parametrize(
    ("stream", "level"), [("t", RU), ("_RGg", R), ("_MARKt", R), ("_other", RU)]
)
def test_streams_that_clients_keep_are_made_by_readers(stream: str, level: Level) -> None:
    request = pb.StreamConfig(streamInfo=pb.StreamInfo(scope="s", stream=stream))
    need = RPCS["createStream"].permission(request, R)
    assert need is not None
    assert need.level is level


@pytest.mark.parametrize(
    ("rights", "stream", "wanted", "claims"),
    [
        ({STREAM: RU}, "t", RU, {STREAM: RU}),
        ({STREAM: RU}, "t", R, {STREAM: R}),
        ({STREAM: R}, "t", RU, {STREAM: R}),
        ({STREAM: R}, "tt", RU, {}),
        ({f"{SCOPE}/reader-group:g": R}, "_RGg", RU, {f"{SCOPE}/stream:_RGg": RU}),
        ({STREAM: R}, "_MARKt", RU, {f"{SCOPE}/stream:_MARKt": RU}),
        ({TABLE: RU}, "k", RU, {TABLE: RU}),
        ({TABLE: R}, "k_kvtable", RU, {TABLE: R}),
        ({f"{SCOPE}/stream:k": RU}, "k", RU, {f"{SCOPE}/stream:k": RU}),
        ({STREAM: RU}, "t", NONE, {STREAM: NONE}),
    ],
)
def test_a_token_claims_what_the_caller_has(
    rights: dict[str, Level], stream: str, wanted: Level, claims: dict[str, Level]
) -> None:
    assert claims_of(Rights(rights), "s", stream, wanted, R) == claims


FOR_SEGMENTS = {"getURI", "getDelegationToken"}
"""RPCs in which clients of a key-value table name it as a stream."""


@pytest.mark.parametrize("stream", ["k", "k_kvtable", "kk"])
def test_names_of_a_tables_segments_stand_for_the_table(stream: str) -> None:
    info = pb.StreamInfo(scope="s", stream=stream, accessOperation=pb.StreamInfo.READ_WRITE)
    for name, request in (("getURI", pb.SegmentId(streamInfo=info)), ("getDelegationToken", info)):
        need = RPCS[name].permission(request, R)
        assert need is not None
        assert need.is_met_by(Rights({TABLE: RU})) is (stream != "kk")


@pytest.mark.parametrize("name", sorted(ROWS.keys() - FOR_SEGMENTS))
def test_rights_to_a_table_are_not_rights_to_a_stream(name: str) -> None:
    request, resource, _ = ROWS[name]
    need = RPCS[name].permission(request, R)
    assert need is not None
    assert need.is_met_by(Rights({f"{SCOPE}/key-value-table:t": RU})) is False
    assert need.is_met_by(Rights({TABLE: RU})) is (resource == TABLE)


@pytest.mark.parametrize("granted", [f"{SCOPE}/stream:k_kvtable", f"{SCOPE}/stream:k"])
def test_rights_to_streams_give_no_token_for_a_table(granted: str) -> None:
    rights = Rights({granted: RU})
    assert claims_of(rights, "s", "k_kvtable", RU, R) == {}
    request = pb.StreamInfo(scope="s", stream="k_kvtable")
    need = RPCS["getDelegationToken"].permission(request, R)
    assert need is not None
    assert not need.is_met_by(rights)
    assert need.is_met_by(Rights({TABLE: R}))
