"""The gRPC server: threads that carry calls into the trio loop and answers back.

Owns: the listening port, the server's threads, the gRPC status of every error, and draining.

Invariants:
1. A call runs in the trio loop as one task, unless its handler waits for nothing: clients ask where
   a segment is for each that they write, and the way to the loop costs more than the answer. The
   caller's going away never cancels it: work that was begun is finished or recorded.
2. Every method of the interface answers; one that is not served says so in a sentence.
3. After ``stop`` no call of ours is running any more.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import structlog
import trio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from pravega_controller import group_handlers, handlers
from pravega_controller.authority import dialled_host, local_host_towards
from pravega_controller.controller import Controller
from pravega_controller.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    GenerationMismatchError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    ScalePreconditionError,
    SegmentStoreError,
    StoreUnavailableError,
    StreamNotSealedError,
    StreamSealedError,
    TableNotEmptyError,
    VersionConflictError,
)
from pravega_controller.rpc import HANDLERS, IMMEDIATE, NOT_IMPLEMENTED, Call, Handler
from pravega_wire import controller_pb2
from pravega_wire.names import InvalidNameError

# Importing them filled the table of handlers.
assert handlers
assert group_handlers

SERVICE = controller_pb2.DESCRIPTOR.services_by_name["ControllerService"]

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
CALLS_MAX = 1024
"""Calls that may wait for a thread; more are told to try again."""

OPTIONS: tuple[tuple[str, int], ...] = (
    # A second process on our port is a mistake to be told, not a way to share load.
    ("grpc.so_reuseport", 0),
    # Clients ping idle channels; the default would answer with "too many pings" and hang up.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)

# The first kind that fits decides.
_STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidNameError, grpc.StatusCode.INVALID_ARGUMENT),
    (AlreadyExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (TableNotEmptyError, grpc.StatusCode.FAILED_PRECONDITION),
    (StreamSealedError, grpc.StatusCode.FAILED_PRECONDITION),
    (StreamNotSealedError, grpc.StatusCode.FAILED_PRECONDITION),
    (ScalePreconditionError, grpc.StatusCode.FAILED_PRECONDITION),
    (GenerationMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (IllegalStateError, grpc.StatusCode.INTERNAL),
    (VersionConflictError, grpc.StatusCode.ABORTED),
    (StoreUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (SegmentStoreError, grpc.StatusCode.INTERNAL),
    (CorruptMetadataError, grpc.StatusCode.INTERNAL),
)

log = structlog.get_logger(__name__)


class ListenError(OSError):
    """The port cannot be listened on: ``errno`` and a sentence say why."""


class _StoppingError(Exception):
    """The controller is being stopped."""


class ControllerServer:
    """A gRPC server for one controller. Start it within the trio loop that is to run its calls."""

    def __init__(
        self, host: str, port: int, *, threads: int, published_address: str | None = None
    ) -> None:
        self._host = host
        self._port = port
        self._published_address = published_address
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="controller-call")
        self._server = grpc.server(self._pool, options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        self._calls: set[trio.CancelScope] = set()

    def listen(self) -> int:
        """Take the port and return its number. ``ListenError``."""
        if self._port:
            _check_free(self._host, self._port)
        host = f"[{self._host}]" if ":" in self._host else self._host
        sentence = f"cannot listen on {self._host}:{self._port}"
        try:
            port = self._server.add_insecure_port(f"{host}:{self._port}")
        except RuntimeError as error:
            raise ListenError(errno.EADDRNOTAVAIL, sentence) from error
        if port == 0:
            raise ListenError(errno.EADDRNOTAVAIL, sentence)
        self._port = port
        return port

    def start(self, controller: Controller) -> None:
        """Begin to answer calls."""
        token = trio.lowlevel.current_trio_token()
        methods = {
            method.name: self._method(method, controller, token) for method in SERVICE.methods
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE.full_name, methods),)
        )
        self._server.start()

    async def stop(self, *, drain_seconds: float) -> None:
        """Take no more calls, let those under way finish for so long, then end them."""
        stopped = self._server.stop(drain_seconds)
        await trio.to_thread.run_sync(stopped.wait)
        for scope in self._calls:
            scope.cancel()
        await trio.to_thread.run_sync(self._pool.shutdown)

    def _method(
        self, method: MethodDescriptor, controller: Controller, token: trio.lowlevel.TrioToken
    ) -> grpc.RpcMethodHandler[Message, Message]:
        request_class = message_factory.GetMessageClass(method.input_type)
        handler = HANDLERS.get(method.name)
        behaviour: Callable[[Message, grpc.ServicerContext], Message]
        if handler is None:
            behaviour = _refusal(NOT_IMPLEMENTED[method.name])
        else:
            behaviour = self._behaviour(handler, controller, token)
        return grpc.unary_unary_rpc_method_handler(
            behaviour,
            request_deserializer=request_class.FromString,
            response_serializer=_serialize,
        )

    def _behaviour(
        self, handler: Handler, controller: Controller, token: trio.lowlevel.TrioToken
    ) -> Callable[[Message, grpc.ServicerContext], Message]:
        """What a thread of the server does with a call."""

        def behave(request: Message, context: grpc.ServicerContext) -> Message:
            call = Call(self._host_for(context), self._port)
            try:
                if handler in IMMEDIATE:
                    return _answer_now(handler(controller, request, call))
                return trio.from_thread.run(
                    self._run, handler, controller, request, call, trio_token=token
                )
            except (trio.RunFinishedError, trio.Cancelled, _StoppingError):
                context.abort(grpc.StatusCode.UNAVAILABLE, "the controller is stopping")
            except Exception as error:
                code = _status_of(error)
                if code is grpc.StatusCode.UNKNOWN:
                    log.exception("call failed", method=handler.__name__)
                context.abort(code, str(error) or type(error).__name__)

        return behave

    def _host_for(self, context: grpc.ServicerContext) -> str:
        """The host at which the caller can reach us: the one it dialled, if it says so."""
        return (
            self._published_address
            or dialled_host(_authority(context))
            or local_host_towards(context.peer(), self._host)
        )

    async def _run(
        self, handler: Handler, controller: Controller, request: Message, call: Call
    ) -> Message:
        with trio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                return await handler(controller, request, call)
            finally:
                self._calls.discard(scope)
        raise _StoppingError


def _answer_now(answer: Awaitable[Message]) -> Message:
    """What a handler returns that waits for nothing."""
    steps = answer.__await__()
    try:
        next(steps)
    except StopIteration as end:
        message: Message = end.value
        return message
    raise AssertionError("an immediate handler waits")


def _refusal(sentence: str) -> Callable[[Message, grpc.ServicerContext], Message]:
    def refuse(request: Message, context: grpc.ServicerContext) -> Message:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, sentence)

    return refuse


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _status_of(error: Exception) -> grpc.StatusCode:
    for kind, code in _STATUS:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.UNKNOWN


def _authority(context: grpc.ServicerContext) -> str:
    """The call's ``:authority``.

    grpcio keeps it with the call but shows it nowhere; should it move, clients are sent to the
    address we listen on, and a test fails.
    """
    event = getattr(context, "_rpc_event", None)
    host = getattr(getattr(event, "call_details", None), "host", b"")
    return host.decode("ascii", "replace") if isinstance(host, bytes) else ""


def _check_free(host: str, port: int) -> None:
    """Say what is wrong with a port in words; grpcio only says that something is."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        sentence = f"cannot listen on {host}:{port}: {error.strerror}"
        raise ListenError(errno.EADDRNOTAVAIL, sentence) from error
    except OSError as error:
        sentence = f"cannot listen on {host}:{port}: {error.strerror}"
        raise ListenError(error.errno, sentence) from error
