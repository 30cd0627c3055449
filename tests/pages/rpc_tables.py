"""Makes the table of the controller's RPCs, with what a caller needs for each, from their
declarations.

Owns: the form of a row, and the requests by which a row of permissions is asked what it needs.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pravega_controller.rpc import service
from pravega_controller.rpc.permissions import WRITING, Need
from pravega_controller.rpc.rpc import RPCS, Rpc
from pravega_security.resources import Level
from pravega_wire import controller_pb2 as pb

NAMES = {
    "scope": "SCOPE",
    "stream": "STREAM",
    "readerGroupName": "GROUP",
    "readerGroup": "GROUP",
    "kvtName": "TABLE",
}
"""The words for names in a request, by field."""
LEVELS = {Level.NONE: "nothing", Level.READ: "read", Level.READ_UPDATE: "read, update"}
_DEPTH_MAX = 3
"""Maximum depth of messages in a request that have a name."""


def table_of_rpcs() -> str:
    """Return the RPCs in the order of the interface."""
    assert service.HANDLER_MODULES, "the handlers are declared by their import"
    lines = ["| RPC | request | reply | right | on one of |\n| --- | --- | --- | --- | --- |\n"]
    for method in pb.DESCRIPTOR.services_by_name["ControllerService"].methods:
        right, resources = describe_needs(RPCS[method.name], method)
        cells = (
            f"`{method.name}`",
            method.input_type.name,
            method.output_type.name,
            right,
            "<br>".join(f"`{each}`" for each in resources),
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def describe_needs(rpc: Rpc, method: MethodDescriptor) -> tuple[str, tuple[str, ...]]:
    """Return what a caller needs for an RPC, and the resources of which one is enough."""
    request = fill(GetMessageClass(method.input_type)())
    need = rpc.permission(request, Level.READ)
    if need is None:
        return "none: anybody may call it", ()
    right = LEVELS[need.level]
    for way, other in other_needs(rpc, request):
        if other.level != need.level:
            right += f"; {LEVELS[other.level]} {way}"
    return right, need.resources


def other_needs(rpc: Rpc, request: Message) -> list[tuple[str, Need]]:
    """Return what the RPC needs for other purposes and under other settings, each with words."""
    strict = rpc.permission(request, Level.READ_UPDATE)
    found = [("with `readers_change_groups = false`", strict)]
    writing = type(request)()
    writing.CopyFrom(request)
    if say_purpose(writing, next(iter(WRITING))):
        found.append(("to write", rpc.permission(writing, Level.READ)))
    return [(way, need) for way, need in found if need is not None]


def fill(message: Message, depth: int = 0) -> Any:
    """Return a request with a word in the place of each name."""
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            continue
        if field.message_type is not None:
            if depth < _DEPTH_MAX and has_names(field.message_type, depth + 1):
                fill(getattr(message, field.name), depth + 1)
                getattr(message, field.name).SetInParent()
        elif field.name in NAMES and field.type == field.TYPE_STRING:
            setattr(message, field.name, NAMES[field.name])
    return message


def has_names(kind: Descriptor, depth: int) -> bool:
    """Return whether messages of a kind have a name somewhere."""
    inner = [field.message_type for field in kind.fields if field.message_type is not None]
    return any(field.name in NAMES for field in kind.fields) or (
        depth < _DEPTH_MAX and any(has_names(each, depth + 1) for each in inner)
    )


def say_purpose(message: Message, purpose: int) -> bool:
    """Let a request say that it is for writing; return whether it can."""
    can = False
    for field in message.DESCRIPTOR.fields:
        if field.name == "accessOperation":
            setattr(message, field.name, purpose)
            can = True
        elif is_filled(message, field):
            can |= say_purpose(getattr(message, field.name), purpose)
    return can


def is_filled(message: Message, field: FieldDescriptor) -> bool:
    """Return whether a field of a request has a message."""
    is_message = field.message_type is not None and not field.is_repeated
    return is_message and message.HasField(field.name)
