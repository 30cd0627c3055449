"""Calls of a controller's gRPC methods, at whichever of several controllers answers.

Owns: the channels, the repetition of calls, and the error of a call that fails.

Invariants:
1. When a controller refuses a call, the client raises a ``PravegaError`` that names the scope or
   stream of the call. Held by ``test_a_failed_call_names_its_scope_or_stream``.
2. When a client has credentials, each of its calls has them, by TLS or not. Held by
   ``test_credentials_go_with_each_call``.
3. When a position in a stream is not one any more, the error says so, and why.
   Held by ``test_a_client_is_told_of_which_stream_a_position_is``.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

# Without this, the gRPC library writes messages to stderr.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from google.protobuf.message import Message

from pravega_wire import controller_pb2 as pb
from pravega_wire.blocking import is_segment_store
from pravega_wire.errors import DROPPED, EARLIER_STREAM, POSITION_METADATA, REASON_METADATA
from pravega_wire.names import scoped_name
from pravega_wire.sessions.time_limits import bound_attempt
from segstore_client.access.credentials import HEADER, Credentials
from segstore_client.access.tls import (
    ClientTls,
    find_tls_mistake,
    make_channel_credentials,
    make_context,
    speaks_tls,
)
from segstore_client.access.words import AccessWords
from segstore_client.addresses import parse_host_port
from segstore_client.backoff import Patience
from segstore_client.errors import (
    AlreadyExistsError,
    ClosedError,
    ControllerFailureError,
    EarlierStreamError,
    NoPermissionError,
    NotFoundError,
    PositionGoneError,
    PravegaError,
    StoreDelayedError,
    TimedOutError,
    UnavailableError,
    UntrustedServerError,
    UsageError,
)

CALL_SECONDS = 60.0
CONNECT_SECONDS = 10.0
"""Maximum time, in seconds, of one attempt to connect. It is long because the kernel of a busy
server accepts a connection long before the server answers on it."""
LOOK_SECONDS = 1.0
"""Maximum time, in seconds, to find out whether an address is that of a segment store."""

_SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name
_MESSAGE_BYTES_MAX = 16 * 1024 * 1024

Reply = TypeVar("Reply", bound=Message)

_PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)
"""Statuses after which a call is repeated, as official clients repeat it."""
_AWAITED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})
"""The statuses of servers that are away, or wait themselves. Another one may be the answer that
stays, such as that to a transaction on a sealed stream."""
BRIEF_SECONDS = 1.0
"""Maximum time, in seconds, for which a call is repeated after the others."""

_POSITION_ERRORS: Mapping[str, type[PravegaError]] = {
    EARLIER_STREAM: EarlierStreamError,
    DROPPED: PositionGoneError,
}


@dataclass(frozen=True, slots=True)
class Told:
    """The explanation of a reply: a sentence, "" if there is none, and the error that says why a
    position in a stream is not one, if the controller knows."""

    reason: str
    position_error: type[PravegaError] | None


class ControllerCalls:
    """Calls controllers, of which the first one that answers gets all calls, until it does not
    answer any more. Safe for threads.

    A call that fails with a status of ``_AWAITED`` is repeated for ``patience`` seconds, one with
    another status of ``_PASSING`` for ``BRIEF_SECONDS`` at most; then it raises
    ``UnavailableError`` or ``ControllerFailureError``. A call without an answer within
    ``CALL_SECONDS``, or the limit of ``call_within``, raises ``TimedOutError``. ``first_patience``
    replaces ``patience`` until a call has been answered.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: ClientTls | None,
        credentials: Credentials | None,
        words: AccessWords,
        first_patience: float | None,
    ) -> None:
        self.address = ",".join(addresses)
        self._credentials = credentials
        self._tls = tls
        self._words = words
        self._first_patience = first_patience
        self._was_served = False
        self._is_closed = False
        # A target of gRPC names one host only, so each controller has a channel.
        self._channels = [_open_channel(each, tls) for each in addresses]
        self._current = 0
        """Index of the channel that the next call uses."""

    def close(self) -> None:
        """Close all channels: each call raises ``ClosedError`` then. Idempotent."""
        self._is_closed = True
        for channel in self._channels:
            channel.close()

    def call(
        self,
        method: str,
        request: Message,
        reply_type: type[Reply],
        scope: str,
        stream: str = "",
        *,
        patience: float,
    ) -> tuple[Reply, Told]:
        """Return the reply, and what the controller told with it. Raises ``PravegaError``."""
        if self._is_closed:
            raise ClosedError(f"the connection to the controller at {self.address} is closed")
        tries = Patience(patience)
        if self._first_patience is not None:
            tries = Patience(self._first_patience)
            tries.begin()
        brief = Patience(min(tries.seconds, BRIEF_SECONDS))
        untried = len(self._channels) - 1
        while True:
            current = self._current
            invoke: Callable[..., Any] = (
                self._channels[current]
                .unary_unary(
                    f"/{_SERVICE}/{method}",
                    request_serializer=type(request).SerializeToString,
                    response_deserializer=reply_type.FromString,
                )
                .with_call
            )
            began, seconds = time.monotonic(), bound_attempt(CALL_SECONDS)
            try:
                reply, call = invoke(request, timeout=seconds, metadata=self._metadata())
            except grpc.RpcError as error:
                # A controller that gives its reason so late has waited for a segment store itself.
                is_late = time.monotonic() - began > tries.seconds
                has_waited = is_late and _has_reason(error)
                if _is_away(error) and not has_waited:
                    self._turn_from(current)
                    if untried > 0:
                        untried -= 1
                        continue
                # A controller that restarts is unavailable for a moment only.
                repeats = tries if _is_awaited(error) else brief
                if _may_pass(error) and not has_waited and repeats.wait():
                    continue
                raise self._explain(error, method, scope, stream) from error
            assert isinstance(reply, reply_type)
            self._first_patience = None
            self._was_served = True
            return reply, _find_explanation(call)

    def _metadata(self) -> tuple[tuple[str, str], ...] | None:
        return None if self._credentials is None else ((HEADER, self._credentials.header),)

    def _find_mistake(self) -> PravegaError:
        """Return the error of an address at which no controller answers, with its reason."""
        sentence = f"no controller answers at {self.address}"
        addresses = self.address.split(",")
        for each in addresses:
            seconds_max = bound_attempt(LOOK_SECONDS)
            host, port = parse_host_port(each)
            context = None
            if self._tls is not None:
                mistake = find_tls_mistake(
                    host,
                    port,
                    self._tls,
                    seconds_max=seconds_max,
                    was_served=self._was_served,
                    words=self._words,
                )
                if mistake:
                    return UntrustedServerError(mistake)
                context = make_context(self._tls)
            if is_segment_store(host, port, seconds_max=seconds_max, tls=context):
                return UnavailableError(f"{sentence}: {each} is a segment store's port")
            if self._tls is None and speaks_tls(host, port, seconds_max=seconds_max):
                return UntrustedServerError(f"{sentence}: {each} speaks TLS, so say tls://{each}")
            if len(addresses) == 1 and (reason := _find_obstacle(host, port, seconds_max)):
                return UnavailableError(f"{sentence}: {reason}")
        return UnavailableError(sentence)

    def _turn_from(self, index: int) -> None:
        """Use the next channel from now on, unless another thread has left ``index`` already."""
        if self._current == index:
            self._current = (index + 1) % len(self._channels)

    def _explain(self, error: grpc.RpcError, method: str, scope: str, stream: str) -> PravegaError:
        assert isinstance(error, grpc.Call)
        code, details = error.code(), error.details() or "no details"
        told = _find_explanation(error)
        subject = f"stream {scoped_name(scope, stream)}" if stream else f"scope {scope}"
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return StoreDelayedError(f"{method} for {subject} has to wait: {details}")
        if told.position_error is not None:
            return told.position_error(details)
        if code is grpc.StatusCode.UNAVAILABLE and told.reason:
            return UnavailableError(f"{method} for {subject} cannot be done now: {details}")
        if code is grpc.StatusCode.UNAVAILABLE:
            return self._find_mistake()
        if code is grpc.StatusCode.NOT_FOUND:
            return NotFoundError(f"{subject} does not exist")
        if code is grpc.StatusCode.ALREADY_EXISTS:
            return AlreadyExistsError(f"{subject} exists already")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return TimedOutError(
                f"the controller at {self.address} did not answer {method} in time"
            )
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return UsageError(f"the controller refused {method} for {subject}: {details}")
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return self._explain_unknown_caller(error.details() or "it is not valid")
        if code is grpc.StatusCode.PERMISSION_DENIED:
            who = "who calls" if self._credentials is None else self._credentials.described
            return NoPermissionError(
                f"{who} has no permission for {method} of {subject if scope else 'all scopes'}: ask"
                f" an administrator to grant it ({details})"
            )
        return ControllerFailureError(f"{method} for {subject} failed with {code.name}: {details}")

    def _explain_unknown_caller(self, reason: str) -> NoPermissionError:
        if self._credentials is None:
            return NoPermissionError(
                f"the controller at {self.address} asks who calls: {self._words.login_advice}"
            )
        return NoPermissionError(
            f"the controller at {self.address} does not accept {self._credentials.described}:"
            f" {reason}"
        )


def _open_channel(address: str, tls: ClientTls | None) -> grpc.Channel:
    options = [
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
        # gRPC's default pauses grow to minutes, and a restart takes seconds.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # In spite of its name, this option is the maximum time of an attempt to connect.
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
    ]
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, make_channel_credentials(tls), options=options)


def _find_obstacle(host: str, port: int, seconds_max: float) -> str:
    """Return why nothing can be asked at an address; "" if something listens there."""
    try:
        socket.create_connection((host, port), timeout=seconds_max).close()
    except socket.gaierror:
        return f"{host} is not a known host"
    except ConnectionRefusedError:
        return "nothing listens there"
    except OSError as error:
        return f"it cannot be reached ({error.strerror or error})"
    return ""


def _has_reason(error: grpc.RpcError) -> bool:
    return isinstance(error, grpc.Call) and bool(_find_explanation(error).reason)


def _is_away(error: grpc.RpcError) -> bool:
    assert isinstance(error, grpc.Call)
    return error.code() is grpc.StatusCode.UNAVAILABLE


def _is_awaited(error: grpc.RpcError) -> bool:
    assert isinstance(error, grpc.Call)
    return error.code() in _AWAITED


def _may_pass(error: grpc.RpcError) -> bool:
    assert isinstance(error, grpc.Call)
    return error.code() in _PASSING


def _find_explanation(call: grpc.Call) -> Told:
    found = dict(call.trailing_metadata() or ())
    reason, position = found.get(REASON_METADATA, b""), found.get(POSITION_METADATA, "")
    return Told(
        reason.decode(errors="replace") if isinstance(reason, bytes) else "",
        _POSITION_ERRORS.get(position) if isinstance(position, str) else None,
    )
