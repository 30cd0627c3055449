"""The health service of gRPC: Kubernetes and others ask it whether a controller serves.

Owns: ``HEALTH``, the part of ``grpc.health.v1.Health`` that is served, and its answers.

A controller takes calls only when its metadata is readable, and the answer comes from the event
loop: a controller that starts, stops or hangs gives none. ``Watch`` is not served.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from pravega_controller.errors import NotFoundError
from pravega_controller.rpc import permissions
from pravega_controller.rpc.rpc import Call, rpc
from pravega_wire import controller_pb2

PACKAGE: Final = "grpc.health.v1"
SERVING: Final = 1
"""Number of the status of a server that serves."""
KNOWN: Final = frozenset(
    {"", controller_pb2.DESCRIPTOR.services_by_name["ControllerService"].full_name}
)
"""The services whose health is known: the server as a whole, and the controller's."""

_FIELD: Final = descriptor_pb2.FieldDescriptorProto


def _declare() -> ServiceDescriptor:
    """Return the service, declared in a pool of its own: other libraries declare it, too."""
    file = descriptor_pb2.FileDescriptorProto(
        name="grpc/health/v1/health.proto", package=PACKAGE, syntax="proto3"
    )
    one = _FIELD.LABEL_OPTIONAL
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=_FIELD.TYPE_STRING, label=one)
    # On the wire an enumeration is an int32.
    response = file.message_type.add(name="HealthCheckResponse")
    response.field.add(name="status", number=1, type=_FIELD.TYPE_INT32, label=one)
    service = file.service.add(name="Health")
    service.method.add(
        name="Check",
        input_type=f".{PACKAGE}.HealthCheckRequest",
        output_type=f".{PACKAGE}.HealthCheckResponse",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindServiceByName(f"{PACKAGE}.Health")


HEALTH: Final = _declare()
_Response: Final = message_factory.GetMessageClass(HEALTH.methods_by_name["Check"].output_type)


@rpc("Check", permissions.anybody, question=True)
async def check(call: Call, request: Any) -> Message:
    """Return that the controller serves. Raises ``NotFoundError`` for an unknown service."""
    if request.service not in KNOWN:
        raise NotFoundError(f"this server has no service {request.service!r}")
    return _Response(status=SERVING)
