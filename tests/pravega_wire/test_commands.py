"""The command table against a list of codes and names kept apart from it."""

import copy

import pytest

from pravega_wire import commands
from pravega_wire.commands import COMMANDS, Command, Hello, KeepAlive, Reply, Request, SetupAppend

REQUESTS = {
    -127: "Hello",
    -70: "AskMetrics",
    -68: "AskDelays",
    -66: "HoldChunks",
    -64: "PlanScan",
    -5: "ListStorageChunks",
    -3: "FlushToStorage",
    1: "SetupAppend",
    3: "AppendBlock",
    4: "AppendBlockEnd",
    5: "ConditionalAppend",
    9: "ReadSegment",
    11: "GetStreamSegmentInfo",
    20: "CreateSegment",
    28: "SealSegment",
    30: "DeleteSegment",
    32: "UpdateSegmentPolicy",
    34: "GetSegmentAttribute",
    36: "UpdateSegmentAttribute",
    38: "TruncateSegment",
    40: "CreateTransientSegment",
    41: "LocateOffset",
    58: "MergeSegments",
    68: "GetTableSegmentInfo",
    70: "CreateTableSegment",
    71: "DeleteTableSegment",
    74: "UpdateTableEntries",
    76: "RemoveTableKeys",
    78: "ReadTable",
    83: "ReadTableKeys",
    85: "ReadTableEntries",
    88: "ReadTableEntriesDelta",
    89: "ConditionalBlockEnd",
    90: "MergeSegmentsBatch",
    100: "KeepAlive",
}
REPLIES = {
    -127: "Hello",
    -71: "MetricsTold",
    -69: "DelaysTold",
    -67: "ChunksHeld",
    -65: "ScanPlanned",
    -6: "StorageChunksListed",
    -4: "StorageFlushed",
    2: "AppendSetup",
    7: "DataAppended",
    8: "ConditionalCheckFailed",
    10: "SegmentRead",
    12: "StreamSegmentInfo",
    21: "SegmentCreated",
    29: "SegmentSealed",
    31: "SegmentDeleted",
    33: "SegmentPolicyUpdated",
    35: "SegmentAttribute",
    37: "SegmentAttributeUpdated",
    39: "SegmentTruncated",
    42: "OffsetLocated",
    50: "WrongHost",
    51: "SegmentIsSealed",
    52: "SegmentAlreadyExists",
    53: "NoSuchSegment",
    55: "InvalidEventNumber",
    56: "SegmentIsTruncated",
    57: "OperationUnsupported",
    59: "SegmentsMerged",
    60: "AuthTokenCheckFailed",
    61: "ErrorMessage",
    69: "TableSegmentInfo",
    75: "TableEntriesUpdated",
    77: "TableKeysRemoved",
    79: "TableRead",
    80: "TableSegmentNotEmpty",
    81: "TableKeyDoesNotExist",
    82: "TableKeyBadVersion",
    84: "TableKeysRead",
    86: "TableEntriesRead",
    87: "TableEntriesDeltaRead",
    91: "SegmentsBatchMerged",
    100: "KeepAlive",
}
NEITHER = {-2: "PartialEvent", -1: "Padding", 0: "Event"}


def names_of(kind: type[Command]) -> dict[int, str]:
    return {code: cls.__name__ for code, cls in COMMANDS.items() if issubclass(cls, kind)}


def test_every_request_and_reply_has_its_code() -> None:
    assert names_of(Request) == REQUESTS
    assert names_of(Reply) == REPLIES
    assert names_of(Command) == REQUESTS | REPLIES | NEITHER


def test_every_command_is_a_frozen_slotted_value(command_class: type[Command]) -> None:
    assert command_class.__struct_config__.frozen
    assert "__dict__" not in dir(command_class)
    assert COMMANDS[command_class.code] is command_class
    assert getattr(commands, command_class.__name__) is command_class


def test_commands_cannot_be_changed_and_compare_by_value() -> None:
    setup = SetupAppend(1, bytes(16), "segment", "")
    assert setup == SetupAppend(1, bytes(16), "segment", "")
    assert hash(setup) == hash(copy.copy(setup))
    with pytest.raises(AttributeError, match="immutable"):
        setup.request_id = 2  # type: ignore[misc]


def test_a_code_is_declared_once() -> None:
    with pytest.raises(AssertionError):
        commands.command(Hello.code)(type("Other", (Request,), {}))
    assert COMMANDS[Hello.code] is Hello
    assert COMMANDS[KeepAlive.code] is KeepAlive
