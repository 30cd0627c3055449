"""The gRPC server: one thread that accepts calls, and the trio loop that answers them.

Owns: the listening port, grpcio's thread, the gRPC status of every error, and draining.

A call is one task of the trio loop. A handler that never waits is called in grpcio's thread
instead: clients ask for the place of each segment that they write, and the way to the loop takes
longer than the answer.

Invariants:
1. While the loop is busy, ``getURI`` is still answered. Held by
   ``test_where_a_segment_is_needs_no_turn_of_the_loop``.
2. A call that waits for its own request or its answer delays no other call: grpcio's thread gives
   each request to the loop and continues. Held by
   ``test_calls_whose_request_does_not_come_hold_up_no_other``.
3. At most ``WAITING_CALLS_MAX`` calls wait for an answer; further calls get RESOURCE_EXHAUSTED.
   Held by ``test_more_calls_than_may_wait_are_told_to_try_again``.
4. When a client disconnects, its call is cancelled if it only reads. A call that changes something
   continues to its end. Held by ``test_a_question_ends_with_its_caller_and_a_change_does_not``.
5. A method that is not served is answered with a sentence that says so. Held by
   ``test_what_is_not_served_says_so``.
"""

from __future__ import annotations

import errno
import importlib
import resource
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import grpc
import structlog
import trio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message

from _fast.metrics.recorders import now_ns
from pravega_controller.authority import dialled_host, local_host_towards
from pravega_controller.controller import Controller
from pravega_controller.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    EarlierStreamError,
    EpochDroppedError,
    GenerationMismatchError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    ScalePreconditionError,
    StepRefusedError,
    StoreAnswerError,
    StoreDelayedError,
    StoreUnavailableError,
    StreamNotSealedError,
    StreamSealedError,
    TableNotEmptyError,
    UnauthenticatedError,
    UnservedError,
    UnverifiableError,
    VersionConflictError,
)
from pravega_controller.rpc import (
    group_handlers,
    handlers,
    health,
    key_value_table_handlers,
    transaction_handlers,
    watermark_handlers,
)
from pravega_controller.rpc.audit_log import subject_of
from pravega_controller.rpc.rpc import RPCS, Call, Rpc
from pravega_metrics.controller_metrics import RPC_SECONDS
from pravega_security.principals import Principal
from pravega_wire import controller_pb2
from pravega_wire.errors import DROPPED, EARLIER_STREAM, POSITION_METADATA, REASON_METADATA
from pravega_wire.names import InvalidNameError

if TYPE_CHECKING:
    from pravega_controller.rpc.authorization import Authorization
    from pravega_controller.rpc.secure_port import PortCertificate

HANDLER_MODULES = (
    handlers,
    health,
    group_handlers,
    watermark_handlers,
    key_value_table_handlers,
    transaction_handlers,
)
"""The modules with handlers. Importing them filled the table of RPCs."""

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
    # No other bound counts the calls of a client that has not sent its requests yet.
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
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (UnverifiableError, grpc.StatusCode.UNAVAILABLE),
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    # To clients it is as a segment whose records were dropped.
    (EarlierStreamError, grpc.StatusCode.NOT_FOUND),
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidNameError, grpc.StatusCode.INVALID_ARGUMENT),
    # Clients do not repeat it, as they would after a FAILURE.
    (StepRefusedError, grpc.StatusCode.INVALID_ARGUMENT),
    (AlreadyExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (TableNotEmptyError, grpc.StatusCode.FAILED_PRECONDITION),
    (StreamSealedError, grpc.StatusCode.FAILED_PRECONDITION),
    (StreamNotSealedError, grpc.StatusCode.FAILED_PRECONDITION),
    (ScalePreconditionError, grpc.StatusCode.FAILED_PRECONDITION),
    (GenerationMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (IllegalStateError, grpc.StatusCode.INTERNAL),
    (VersionConflictError, grpc.StatusCode.ABORTED),
    (UnservedError, grpc.StatusCode.UNIMPLEMENTED),
    # Official clients try again on these two, some ten times, and then report the sentence.
    (StoreDelayedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (StoreUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (StoreAnswerError, grpc.StatusCode.INTERNAL),
    (CorruptMetadataError, grpc.StatusCode.DATA_LOSS),
)

STOPPING = "the controller is stopping"

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

    def __init__(
        self,
        host: str,
        port: int,
        *,
        published_address: str | None = None,
        certificate: PortCertificate | None = None,
        authorization: Authorization | None = None,
    ) -> None:
        """Take the certificate of the port; without one, the port has no TLS. Without
        ``authorization`` everybody may call everything."""
        self._certificate = certificate
        self._authorization = authorization
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
            if self._certificate is None:
                port = self._server.add_insecure_port(f"{host}:{self._port}")
            else:
                credentials = self._certificate.credentials()
                port = self._server.add_secure_port(f"{host}:{self._port}", credentials)
        except RuntimeError as error:
            raise ListenError(errno.EADDRNOTAVAIL, sentence) from error
        if port == 0:
            raise ListenError(errno.EADDRNOTAVAIL, sentence)
        self._port = port
        return port

    def start(self, controller: Controller, nursery: trio.Nursery) -> None:
        """Begin to answer calls; ``nursery`` runs those that wait."""
        token = trio.lowlevel.current_trio_token()

        def start_call(rpc: Rpc, request: Message, answer: _Answer) -> None:
            try:
                nursery.start_soon(self._run, rpc, controller, request, answer)
            except RuntimeError:
                # The nursery is closed: the controller has already ended all calls.
                answer.refuse(grpc.StatusCode.UNAVAILABLE, STOPPING)

        def accept(rpc: Rpc, request: Message, answer: _Answer) -> None:
            message = None
            if rpc.immediate is not None:
                authorization, caller = self._authorization, None
                if authorization is not None:
                    caller = authorization.admit_known(rpc, answer.context)
                    if caller is not None:
                        authorization.permit(rpc, request, caller, answer.context)
                if authorization is None or caller is not None:
                    message = rpc.immediate(self._describe(controller, answer, caller), request)
            if message is not None:
                answer.reply(message)
            else:
                token.run_sync_soon(start_call, rpc, request, answer)

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
        """Refuse further calls, let running ones finish for ``drain_seconds``, then end them."""
        stopped = self._server.stop(drain_seconds)
        await trio.to_thread.run_sync(stopped.wait)
        nursery.cancel_scope.cancel()

    async def _run(
        self, rpc: Rpc, controller: Controller, request: Message, answer: _Answer
    ) -> None:
        """Run one call in the loop and send its answer."""
        if self._waiting_count >= WAITING_CALLS_MAX:
            sentence = f"{WAITING_CALLS_MAX} calls wait already; try again"
            answer.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence)
            return
        self._waiting_count += 1
        try:
            with trio.CancelScope() as scope:
                if rpc.question:
                    answer.cancel_when_unwanted(scope)
                caller = None
                if (authorization := self._authorization) is not None:
                    caller = await authorization.admit(rpc, answer.context)
                    authorization.permit(rpc, request, caller, answer.context)
                call = self._describe(controller, answer, caller)
                answer.reply(await rpc.answer(call, request))
        except trio.Cancelled:
            answer.refuse(grpc.StatusCode.UNAVAILABLE, STOPPING)
            raise
        except Exception as error:
            answer.refuse_for(error, rpc, request)
        finally:
            self._waiting_count -= 1

    def _describe(self, controller: Controller, answer: _Answer, caller: Principal | None) -> Call:
        """Return what a handler gets besides the request, such as this server's address."""
        # The caller can reach this controller at the host that it connected to.
        host = (
            self._published_address
            or dialled_host(_authority(answer.context))
            or local_host_towards(answer.context.peer(), self._host)
        )
        mint = None if self._authorization is None else self._authorization.mint
        return Call(controller, host, self._port, answer.explain, caller, mint)


class _Inline(ThreadPoolExecutor):
    """Runs submitted functions at once, in the thread of the caller: none of ours waits."""

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
        method: str,
    ) -> None:
        self._method = method
        self._began = now_ns()
        self.context = context
        self._send = send
        self._token = token
        self._is_answered = False

    def reply(self, message: Message) -> None:
        """Send the answer of the call."""
        self._end(grpc.StatusCode.OK)
        # ``send(message)`` would block until the peer reads the message, so it is sent together
        # with the status, as grpcio's own unary methods do it.
        context: Any = self.context
        _grpcio._status(context._rpc_event, context._state, message.SerializeToString())

    def explain(self, error: Exception) -> None:
        """Send an error's sentence with the answer, which clients of the original ignore."""
        self._tell(str(error), _position_of(error))

    def _tell(self, sentence: str, position: str) -> None:
        told: list[tuple[str, str | bytes]] = [
            (REASON_METADATA, sentence[:SENTENCE_LENGTH_MAX].encode())
        ]
        if position:
            told.append((POSITION_METADATA, position))
        self.context.set_trailing_metadata(tuple(told))

    def refuse(self, code: grpc.StatusCode, sentence: str, *, position: str = "") -> None:
        """End the call with a status."""
        self._end(code)
        # The metadata distinguish a refusal from a missing controller: both may have this status.
        self._tell(sentence, position)
        self.context.set_code(code)
        self.context.set_details(sentence)
        self._send(None)

    def _end(self, code: grpc.StatusCode) -> None:
        self._is_answered = True
        RPC_SECONDS.of(self._method, code.name).record_since(self._began)

    def refuse_for(self, error: Exception, rpc: Rpc, request: Message | None) -> None:
        """End the call with the status and the sentence of an error."""
        code = _status_of(error)
        sentence = str(error) or type(error).__name__
        if isinstance(error, CorruptMetadataError):
            sentence = f"{subject_of(request)}: metadata is damaged: {sentence}"
            log.error("metadata is damaged", method=rpc.name, reason=sentence)
        elif code is grpc.StatusCode.UNKNOWN:
            log.error("call failed", method=rpc.name, exc_info=error)
        self.refuse(code, sentence[:SENTENCE_LENGTH_MAX], position=_position_of(error))

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
    accept: Callable[[Rpc, Message, _Answer], None],
    token: trio.lowlevel.TrioToken,
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return what grpcio calls for a method; ``accept`` gets a call once its request is there.

    On the wire a unary call is a stream of one message each way; only for streams does grpcio let
    the function return before there is a request or an answer.
    """
    request_class = message_factory.GetMessageClass(method.input_type)
    rpc = RPCS[method.name]

    def receive(data: bytes | None, answer: _Answer) -> None:
        request: Message | None = None
        try:
            request = _decode(request_class, data)
            accept(rpc, request, answer)
        except trio.RunFinishedError:
            answer.refuse(grpc.StatusCode.UNAVAILABLE, STOPPING)
        except Exception as error:
            # An exception must not reach grpcio's thread, which serves all callers.
            answer.refuse_for(error, rpc, request)

    def begin(requests: object, context: Any, send: Callable[[None], None]) -> None:
        answer = _Answer(context, send, token, rpc.name)
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


def _decode(kind: type[Message], data: bytes | None) -> Message:
    if data is None:
        raise InvalidRequestError("the call has no request")
    # grpcio would answer INTERNAL, after which clients try again.
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is no {kind.DESCRIPTOR.name}") from error


def _position_of(error: Exception) -> str:
    """Return the word for a position that an error is about; "" for another error."""
    if isinstance(error, EarlierStreamError):
        return EARLIER_STREAM
    return DROPPED if isinstance(error, EpochDroppedError) else ""


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
