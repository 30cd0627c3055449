"""Values that nothing can ever have, at every RPC: refused at once, for good, with nothing left."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import pytest
import trio
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.rpc.service import SERVICE
from pravega_controller.server import serve
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import controller_pb2 as pb

FIXED = pb.ScalingPolicy.FIXED_NUM_SEGMENTS
BY_EVENTS = pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC
BY_BYTES = pb.ScalingPolicy.BY_RATE_IN_KBYTES_PER_SEC
BY_TIME = pb.RetentionPolicy.TIME
BY_SIZE = pb.RetentionPolicy.SIZE
ID = "11111111-2222-3333-4444-555555555555"

# ---- Configurations of streams -------------------------------------------------------------------


def config(name: str = "new", **fields: Any) -> pb.StreamConfig:
    values = {"scalingPolicy": pb.ScalingPolicy(minNumSegments=1), **fields}
    return pb.StreamConfig(streamInfo=pb.StreamInfo(scope="s", stream=name), **values)


def scaling(kind: Any, count: int, rate: int = 0, factor: int = 0) -> pb.ScalingPolicy:
    return pb.ScalingPolicy(
        scaleType=kind, minNumSegments=count, targetRate=rate, scaleFactor=factor
    )


def retention(kind: Any, minimum: int, maximum: int) -> pb.RetentionPolicy:
    return pb.RetentionPolicy(retentionType=kind, retentionParam=minimum, retentionMax=maximum)


def tags(*values: str) -> pb.Tags:
    return pb.Tags(tag=values)


BAD_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "no policy": {"scalingPolicy": None},
    "no segments": {"scalingPolicy": scaling(FIXED, 0)},
    "negative segments": {"scalingPolicy": scaling(FIXED, -1)},
    "too many segments": {"scalingPolicy": scaling(FIXED, 5001)},
    "most segments": {"scalingPolicy": scaling(FIXED, 2**31 - 1)},
    "unknown policy": {"scalingPolicy": scaling(7, 1, 1, 2)},
    "rate 0": {"scalingPolicy": scaling(BY_EVENTS, 1, 0, 2)},
    "negative rate": {"scalingPolicy": scaling(BY_BYTES, 1, -5, 2)},
    "factor 0": {"scalingPolicy": scaling(BY_EVENTS, 1, 10, 0)},
    "negative factor": {"scalingPolicy": scaling(BY_BYTES, 1, 10, -1)},
    "negative retention": {"retentionPolicy": retention(BY_TIME, -1, 5)},
    "negative maximum": {"retentionPolicy": retention(BY_SIZE, 1, -5)},
    "maximum below minimum": {"retentionPolicy": retention(BY_SIZE, 10, 9)},
    "unknown retention": {"retentionPolicy": retention(9, 1, 2)},
    "negative rollover": {"rolloverSizeBytes": -1},
    "negative aggregation time-out": {"timestampAggregationTimeout": -1},
    "too many tags": {"tags": tags(*(f"t{number}" for number in range(128)))},
    "too long a tag": {"tags": tags("x" * 256)},
    "a tag too long for Java": {"tags": tags("\U0001f600" * 128)},
    "2 MB of tags": {"tags": tags("x" * 2_000_000)},
}


async def refusal(client: Any, method: str, request: Message) -> str:
    """Return the sentence with which a request is refused for good."""
    with pytest.raises(grpc.RpcError) as caught:
        await client.call(method, request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, request
    sentence: str = caught.value.details()
    return sentence


@pytest.mark.parametrize("method", ["createStream", "updateStream"])
async def test_a_configuration_that_no_stream_can_have_changes_nothing(
    grpc_on_memory: Any, memory_store: MemorySegmentStore, method: str
) -> None:
    await grpc_on_memory.call("createScope", pb.ScopeInfo(scope="s"))
    await grpc_on_memory.call("createStream", config("old"))
    before = memory_store.contents()
    for name, fields in BAD_CONFIGURATIONS.items():
        request = config("old" if method == "updateStream" else "new", **fields)
        assert len(await refusal(grpc_on_memory, method, request)) > 10, name
    assert memory_store.contents() == before


async def test_the_bounds_themselves_are_allowed(grpc_on_memory: Any) -> None:
    call = grpc_on_memory.call
    await call("createScope", pb.ScopeInfo(scope="s"))
    longest = [f"{number:03}" + "\U0001f600" * 126 for number in range(127)]
    for number, fields in enumerate(
        (
            {"tags": tags(*longest)},
            {"tags": tags(*(["again"] * 500))},
            {"retentionPolicy": retention(BY_SIZE, 10, 10)},
            {"retentionPolicy": retention(BY_TIME, 10, 0)},
            {"scalingPolicy": scaling(BY_EVENTS, 1, 1, 1)},
        )
    ):
        answer = await call("createStream", config(f"a{number}", **fields))
        assert answer.status == pb.CreateStreamStatus.SUCCESS, fields
    read = await call("getStreamConfiguration", pb.StreamInfo(scope="s", stream="a0"))
    assert list(read.tags.tag) == longest
    read = await call("getStreamConfiguration", pb.StreamInfo(scope="s", stream="a1"))
    assert list(read.tags.tag) == ["again"]


# ---- Reader groups -------------------------------------------------------------------------------


def group(**fields: Any) -> pb.ReaderGroupConfiguration:
    return pb.ReaderGroupConfiguration(
        **{"scope": "s", "readerGroupName": "g", "readerGroupId": ID, **fields}
    )


def large_cuts() -> list[pb.StreamCut]:
    cut = dict.fromkeys(range(1 << 40, (1 << 40) + 5000), 2**62)
    info = pb.StreamInfo(scope="s", stream="a" * 200)
    return [pb.StreamCut(streamInfo=info, cut=cut) for _ in range(9)]


async def test_a_group_that_can_never_be_changes_nothing(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    await grpc_on_memory.call("createScope", pb.ScopeInfo(scope="s"))
    before = memory_store.contents()
    for fields in (
        {"readerGroupId": "no uuid"},
        {"retentionType": 9},
        {"retentionType": -1},
        {"rolloverSizeBytes": -1},
        {"startingStreamCuts": large_cuts()},
    ):
        await refusal(grpc_on_memory, "createReaderGroup", group(**fields))
    assert memory_store.contents() == before


async def test_a_group_keeps_its_configuration_when_the_new_one_can_never_be(
    grpc_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    await grpc_on_memory.call("createScope", pb.ScopeInfo(scope="s"))
    await grpc_on_memory.call("createReaderGroup", group())
    before = memory_store.contents()
    for fields in ({"readerGroupId": "no uuid"}, {"retentionType": 9}):
        answer = await grpc_on_memory.call("updateReaderGroup", group(**fields))
        assert answer.status == pb.UpdateReaderGroupResponse.INVALID_CONFIG
    assert memory_store.contents() == before


async def test_the_system_scope_is_never_deleted(grpc_on_memory: Any) -> None:
    for method in ("deleteScope", "deleteScopeRecursive"):
        await refusal(grpc_on_memory, method, pb.ScopeInfo(scope="_system"))


# ---- Every RPC -----------------------------------------------------------------------------------

NAMES = {
    "scope": "s",
    "stream": "a",
    "readerGroup": "g",
    "readerGroupName": "g",
    "kvtName": "t",
    "subscriber": "s/g",
    "readerGroupId": ID,
    "writer": "w",
    "writerId": "w",
}
PERMANENT = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED,
}
_INTEGERS = {FieldDescriptor.CPPTYPE_INT32: 32, FieldDescriptor.CPPTYPE_INT64: 64}
INTEGERS = {
    "minus one": lambda bits: -1,
    "least": lambda bits: -(2 ** (bits - 1)),
    "greatest": lambda bits: 2 ** (bits - 1) - 1,
}
DOUBLES = {"minus one": float("nan"), "least": float("-inf"), "greatest": float("inf")}
STRINGS = {
    "empty": "",
    "slash": "a/b",
    "odd": "\0\u00e9#epoch.0 \n..",
    "long": "x" * 300,
    "very long": "x" * 1_500_000,
}


def fill(message: Any, *, names: str | None, numbers: str) -> None:
    """Set every field: strings by ``names`` (None: existing names), numbers by ``numbers``."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[INTEGERS[numbers](64)] = INTEGERS[numbers](64)
        elif field.message_type is not None and field.is_repeated:
            for _ in range(2):
                fill(getattr(message, field.name).add(), names=names, numbers=numbers)
        elif field.message_type is not None:
            part = getattr(message, field.name)
            part.SetInParent()
            fill(part, names=names, numbers=numbers)
        else:
            value = value_of(field, names=names, numbers=numbers)
            if field.is_repeated:
                getattr(message, field.name).extend([value, value])
            else:
                setattr(message, field.name, value)


def value_of(field: FieldDescriptor, *, names: str | None, numbers: str) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return NAMES.get(field.name, "x") if names is None else STRINGS[names]
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return DOUBLES[numbers]
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return 99
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return True
    return INTEGERS[numbers](_INTEGERS[kind])


@pytest.fixture
async def served(segment_store: tuple[str, int], nursery: trio.Nursery) -> str:
    """The address of a controller on a real segment store."""
    settings = ControllerConfig(port=0, segment_stores=(segment_store,), drain_seconds=0.1)
    host, port = await nursery.start(partial(serve, settings, environment=Environment()))
    return f"{host}:{port}"


def invoke(channel: grpc.Channel, method: str, data: bytes) -> tuple[str, str]:
    """Send these bytes as a request; return the status of the call, and its sentence."""
    call = channel.unary_unary(f"/{SERVICE.full_name}/{method}").future(data, timeout=15)
    code = call.code()
    return ("PERMANENT" if code in PERMANENT else code.name), call.details()


def requests(method: Any) -> dict[str, bytes]:
    """Return bad requests of a method, by what is bad about them."""
    kind = message_factory.GetMessageClass(method.input_type)
    found = {"nothing": b"", "no message": b"\x0a\xff\xff"}
    for numbers in INTEGERS:
        message = kind()
        fill(message, names=None, numbers=numbers)
        found[f"numbers: {numbers}"] = message.SerializeToString()
    for names in STRINGS:
        message = kind()
        fill(message, names=names, numbers="minus one")
        found[f"names: {names}"] = message.SerializeToString()
    return found


async def test_no_request_however_bad_is_answered_with_a_reason_to_try_again(served: str) -> None:
    wrong: list[str] = []
    with grpc.insecure_channel(served) as channel:

        async def send(method: str, request: Message) -> tuple[str, str]:
            return await trio.to_thread.run_sync(
                invoke, channel, method, request.SerializeToString()
            )

        for method in SERVICE.methods:
            # What an earlier method deleted is made anew; what is there stays.
            await send("createScope", pb.ScopeInfo(scope="s"))
            await send("createStream", config("a"))
            await send("createReaderGroup", group())
            for title, data in requests(method).items():
                code, sentence = await trio.to_thread.run_sync(invoke, channel, method.name, data)
                if code not in ("OK", "PERMANENT"):
                    wrong.append(f"{method.name}, {title}: {code} {sentence}")
        assert not wrong, "\n".join(wrong)
        code, _ = await send("createStream", config("afterwards"))
        assert code == "OK"
