"""The gRPC server: one thread that accepts calls, and the trio loop that answers them.

Owns: the listening port, grpcio's thread, the gRPC status of every error, and draining.

Invariants:
1. A call runs in the trio loop as one task, unless its handler need not wait for anything: clients
   ask for the place of each segment that they write, and the way to the loop costs more than the
   answer.
2. A call that waits, for its own request or for its answer, holds memory only. grpcio's thread
   never waits for a call: it hands each request to the loop and continues. At most
   ``WAITING_CALLS_MAX`` calls wait for an answer; further ones are refused.
3. A caller that goes away cancels its question, and never a change: a change that was begun is
   finished or recorded.
4. Every method of the interface answers; a method that is not served says so in a sentence.
5. After ``stop`` no call runs any more.
"""

from __future__ import annotations

import errno
import importlib
import resource
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import grpc
import structlog
import trio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message

from pravega_controller import (
    group_handlers,
    handlers,
    health,
    key_value_table_handlers,
    transaction_handlers,
    watermark_handlers,
)
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
    StoreAnswerError,
    StoreUnavailableError,
    StreamNotSealedError,
    StreamSealedError,
    TableNotEmptyError,
    VersionConflictError,
)
from pravega_controller.rpc import HANDLERS, IMMEDIATE, NOT_IMPLEMENTED, QUESTIONS, Call, Handler
from pravega_wire import controller_pb2
from pravega_wire.names import InvalidNameError

# Importing them filled the table of handlers.
assert handlers
assert health
assert group_handlers
assert watermark_handlers
assert key_value_table_handlers
assert transaction_handlers

SERVICE = controller_pb2.DESCRIPTOR.services_by_name["ControllerService"]

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
WAITING_CALLS_MAX = 4096
"""Maximum number of calls that wait in the event loop, some 30 KB each; further ones are refused
with a request to try again."""

OPTIONS: tuple[tuple[str, int], ...] = (
    # A second process on the same port is a mistake to report, not a way to share load.
    ("grpc.so_reuseport", 0),
    # Clients ping idle channels; the default would answer with "too many pings" and hang up.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # The work of one client without a request counts nowhere else.
    ("grpc.max_concurrent_streams", WAITING_CALLS_MAX),
    # A connection that does not speak HTTP/2 by then is closed.
    ("grpc.server_handshake_timeout_ms", 10_000),
)
CONNECTIONS_MAX = 15_000
DESCRIPTORS_RESERVED = 64
"""Number of file descriptors kept for segment stores, the event loop, logs and threads."""

SENTENCE_LENGTH_MAX = 1000
"""Maximum length of a status's sentence, in characters: clients take a longer status for a broken
stream, and try again."""

# The first matching kind decides.
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
    (StoreAnswerError, grpc.StatusCode.INTERNAL),
    (CorruptMetadataError, grpc.StatusCode.DATA_LOSS),
)

STOPPING = "the controller is stopping"

_NAMING_FIELDS = frozenset({"scope", "stream", "readerGroupName", "readerGroup", "kvtName"})

# grpcio has no public way to accept a request, or to end a unary call, without blocking a thread;
# if it changes, every test of an answer fails.
_grpcio: Any = importlib.import_module("grpc._server")
_cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger(__name__)


class ListenError(OSError):
    """The port cannot be opened: ``errno`` and a sentence tell why."""


class ControllerServer:
    """A gRPC server for one controller. Start it within the trio loop that will run its calls."""

    def __init__(self, host: str, port: int, *, published_address: str | None = None) -> None:
        self._host = host
        self._port = port
        self._published_address = published_address
        bound = ("grpc.max_allowed_incoming_connections", _connections_max())
        self._server = grpc.server(_Inline(), options=(*OPTIONS, bound))
        self._waiting_count = 0

    def listen(self) -> int:
        """Listen on the port and return its number. Raises ``ListenError``."""
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

    def start(self, controller: Controller, nursery: trio.Nursery) -> None:
        """Begin to answer calls; ``nursery`` runs those that wait."""
        token = trio.lowlevel.current_trio_token()

        def start_call(handler: Handler, request: Message, answer: _Answer) -> None:
            try:
                nursery.start_soon(self._run, handler, controller, request, answer)
            except RuntimeError:
                # The nursery is closed: the controller has ended what was under way.
                answer.refuse(grpc.StatusCode.UNAVAILABLE, STOPPING)

        def accept(handler: Handler, request: Message, answer: _Answer) -> None:
            message = None
            if (answer_now := IMMEDIATE.get(handler)) is not None:
                message = answer_now(self._describe(controller, answer), request)
            if message is not None:
                answer.reply(message)
            else:
                token.run_sync_soon(start_call, handler, request, answer)

        self._server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(
                    each.full_name,
                    {method.name: _method(method, accept, token) for method in each.methods},
                )
                for each in (SERVICE, health.HEALTH)
            )
        )
        self._server.start()

    async def stop(self, nursery: trio.Nursery, *, drain_seconds: float) -> None:
        """Refuse further calls, let those under way finish for ``drain_seconds``, then end them."""
        stopped = self._server.stop(drain_seconds)
        await trio.to_thread.run_sync(stopped.wait)
        nursery.cancel_scope.cancel()

    async def _run(
        self, handler: Handler, controller: Controller, request: Message, answer: _Answer
    ) -> None:
        """Run one call in the loop and send its answer."""
        if self._waiting_count >= WAITING_CALLS_MAX:
            sentence = f"{WAITING_CALLS_MAX} calls wait already; try again"
            answer.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence)
            return
        self._waiting_count += 1
        try:
            with trio.CancelScope() as scope:
                if handler in QUESTIONS:
                    answer.cancel_when_unwanted(scope)
                answer.reply(await handler(self._describe(controller, answer), request))
        except trio.Cancelled:
            answer.refuse(grpc.StatusCode.UNAVAILABLE, STOPPING)
            raise
        except Exception as error:
            answer.refuse_for(error, handler, request)
        finally:
            self._waiting_count -= 1

    def _describe(self, controller: Controller, answer: _Answer) -> Call:
        """Return what a handler gets to know of a call, beside its request."""
        # The caller can reach the host that it dialled, if it tells.
        host = (
            self._published_address
            or dialled_host(_authority(answer.context))
            or local_host_towards(answer.context.peer(), self._host)
        )
        return Call(controller, host, self._port)


class _Inline(ThreadPoolExecutor):
    """Runs what grpcio submits in its own thread, because no code of ours waits there."""

    def __init__(self) -> None:
        """Start no thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class _Answer:
    """The answer of one call, which is sent once; sending it never blocks."""

    def __init__(
        self,
        context: grpc.ServicerContext,
        send: Callable[[None], None],
        token: trio.lowlevel.TrioToken,
    ) -> None:
        self.context = context
        self._send = send
        self._token = token
        self._is_answered = False

    def reply(self, message: Message) -> None:
        """Send the answer of the call."""
        self._is_answered = True
        # ``send(message)`` would block until the peer reads the message, so it is sent together
        # with the status, as grpcio's own unary methods do it.
        context: Any = self.context
        _grpcio._status(context._rpc_event, context._state, message.SerializeToString())

    def refuse(self, code: grpc.StatusCode, sentence: str) -> None:
        """End the call with a status."""
        self._is_answered = True
        self.context.set_code(code)
        self.context.set_details(sentence)
        self._send(None)

    def refuse_for(self, error: Exception, handler: Handler, request: Message | None) -> None:
        """End the call with the status and the sentence of an error."""
        code = _status_of(error)
        sentence = str(error) or type(error).__name__
        if isinstance(error, CorruptMetadataError):
            sentence = f"{_subject_of(request)}: metadata is damaged: {sentence}"
            log.error("metadata is damaged", method=handler.__name__, reason=sentence)
        elif code is grpc.StatusCode.UNKNOWN:
            log.error("call failed", method=handler.__name__, exc_info=error)
        self.refuse(code, sentence[:SENTENCE_LENGTH_MAX])

    def cancel_when_unwanted(self, scope: trio.CancelScope) -> None:
        """Cancel the scope when the caller goes away or its deadline passes before the answer."""

        def cancel() -> None:
            if not self._is_answered:
                try:
                    self._token.run_sync_soon(scope.cancel)
                except trio.RunFinishedError:
                    log.debug("a caller went away after the end of the controller")

        if not self.context.add_callback(cancel):
            scope.cancel()


def _method(
    method: MethodDescriptor,
    accept: Callable[[Handler, Message, _Answer], None],
    token: trio.lowlevel.TrioToken,
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return what grpcio calls for a method; ``accept`` gets a call once its request is there.

    On the wire a unary call is a stream of one message each way; only for streams does grpcio let
    the function return before there is a request or an answer.
    """
    request_class = message_factory.GetMessageClass(method.input_type)
    handler = HANDLERS.get(method.name)

    def receive(data: bytes | None, answer: _Answer) -> None:
        if handler is None:
            answer.refuse(grpc.StatusCode.UNIMPLEMENTED, NOT_IMPLEMENTED[method.name])
            return
        request: Message | None = None
        try:
            request = _decode(request_class, data)
            accept(handler, request, answer)
        except trio.RunFinishedError:
            answer.refuse(grpc.StatusCode.UNAVAILABLE, STOPPING)
        except Exception as error:
            # It must not reach grpcio's thread, which serves all callers.
            answer.refuse_for(error, handler, request)

    def begin(requests: object, context: Any, send: Callable[[None], None]) -> None:
        answer = _Answer(context, send, token)
        state, call = context._state, context._rpc_event.call
        note_received = _grpcio._receive_message(state, call, None)

        def received(event: object) -> object:
            ended = note_received(event)
            data, state.request = state.request, None
            if data is not None or ended == (None, ()):
                receive(data, answer)
            return ended

        with state.condition:
            call.start_server_batch((_cygrpc.ReceiveMessageOperation(0),), received)
            state.due.add(_grpcio._RECEIVE_MESSAGE_TOKEN)

    begin.experimental_non_blocking = True  # type: ignore[attr-defined]
    return grpc.stream_stream_rpc_method_handler(begin)


def _subject_of(message: Message | None) -> str:
    """Return the names in a request, as far as they tell its subject."""
    names: list[str] = []
    for field, value in message.ListFields() if message is not None else ():
        if isinstance(value, Message):
            names.append(_subject_of(value))
        elif isinstance(value, str) and field.name in _NAMING_FIELDS:
            names.append(value)
    return "/".join(name for name in names if name)


def _decode(kind: type[Message], data: bytes | None) -> Message:
    if data is None:
        raise InvalidRequestError("the call has no request")
    # grpcio would answer INTERNAL, after which clients try again.
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is no {kind.DESCRIPTOR.name}") from error


def _status_of(error: Exception) -> grpc.StatusCode:
    for kind, code in _STATUS:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.UNKNOWN


def _authority(context: grpc.ServicerContext) -> str:
    """Return the call's ``:authority``.

    grpcio keeps it with the call but has no public way to read it. If that changes, clients are
    sent to the listening address, and a test fails.
    """
    event = getattr(context, "_rpc_event", None)
    host = getattr(getattr(event, "call_details", None), "host", b"")
    return host.decode("ascii", "replace") if isinstance(host, bytes) else ""


def _connections_max() -> int:
    """Return the maximum number of connections gRPC may accept; it closes further ones at once.

    Without a maximum they would take every file descriptor and leave none for segment stores.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, limit - min(DESCRIPTORS_RESERVED, limit // 2))


def _check_free(host: str, port: int) -> None:
    """Raise ``ListenError`` with the reason if the port is not free; grpcio gives no reason."""
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
