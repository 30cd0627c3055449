"""Checks whether a server serves, by its own protocol.

Owns: ``ask_segment_store`` and ``ask_controller``.

An open port proves little: the kernel accepts connections for a process that hangs, and a segment
store listens before its containers are recovered. So a segment store must answer Hello, and a
controller the health service of gRPC; both do so from their event loops, and only when they serve.
Neither asks for a user then; a store may require a token before it says which containers it serves.

Invariants:
1. When a server speaks TLS and is asked without, or the other way round, the sentence says which.
   Held by ``test_a_check_tells_tls_from_none``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pravega_admin.errors import COMMAND_LINE
from pravega_wire.blocking import (
    ConnectionLostError,
    ReplyTimeoutError,
    is_segment_store,
)
from pravega_wire.commands import AuthTokenCheckFailed, GetStreamSegmentInfo, WrongHost
from pravega_wire.errors import ProtocolError
from pravega_wire.names import CONTAINER_METADATA_PREFIX
from segstore_client.access.tls import (
    find_tls_mistake,
    make_channel_credentials,
    make_context,
    speaks_tls,
)
from segstore_client.access.tokens import DelegationTokens, StoreAccess, TokenExpiredError
from segstore_client.addresses import format_host_port
from segstore_client.errors import (
    PravegaError,
    TimedOutError,
    UnavailableError,
    UntrustedServerError,
)

if TYPE_CHECKING:
    import grpc

    from segstore_client.access.tls import ClientTls

CHECK_METHOD = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"
"""The bytes of the answer of a server that serves: field 1, number 1."""


def ask_segment_store(
    host: str,
    port: int,
    *,
    seconds_max: float,
    containers: Iterable[int] = (),
    tls: ClientTls | None = None,
    token: str = "",
) -> frozenset[int]:
    """Return those of the containers that the store serves.

    Raises ``TimedOutError`` when the store does not answer in time, ``UnavailableError`` when it
    cannot be reached or hangs up, ``UntrustedServerError`` when it is TLS that does not fit, and
    ``NoPermissionError`` when the store does not answer that for this token.
    """
    where = format_host_port(host, port)
    tokens = DelegationTokens(lambda: token) if token else None
    access = StoreAccess(tls=tls, tokens=tokens, words=COMMAND_LINE)
    served = set()
    try:
        with access.connect(host, port, timeout=seconds_max) as connection:
            for container in containers:
                # The name of each container's metadata segment ends with the container's number.
                name = f"{CONTAINER_METADATA_PREFIX}{container}"
                question = GetStreamSegmentInfo(connection.next_request_id(), name, token)
                reply = connection.call(question)
                if isinstance(reply, AuthTokenCheckFailed):
                    raise access.refusal(reply, f"{where} does not tell what it serves")
                if not isinstance(reply, WrongHost):
                    served.add(container)
    except ReplyTimeoutError as error:
        raise TimedOutError(str(error)) from error
    except TokenExpiredError as error:
        raise UnavailableError(str(error)) from error
    except ProtocolError as error:
        _raise_if_tls_differs(host, port, tls, seconds_max, error)
        raise UnavailableError(_describe_other(host, port, tls, seconds_max, error)) from error
    return frozenset(served)


def ask_controller(
    host: str, port: int, *, seconds_max: float, tls: ClientTls | None = None
) -> None:
    """Return if the controller serves. Raises errors as ``ask_segment_store`` does."""
    import grpc

    target = format_host_port(host, port)
    with _open_channel(target, tls) as channel:
        try:
            answer = channel.unary_unary(CHECK_METHOD, None, None)(b"", timeout=seconds_max)
        except grpc.RpcError as error:
            code = error.code()
            # The original's controllers answer that they do not have this method: they serve.
            if code is grpc.StatusCode.UNIMPLEMENTED:
                return
            _raise_if_tls_differs(host, port, tls, seconds_max, error)
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                sentence = f"no reply of {target} within {seconds_max:g} s"
                raise TimedOutError(sentence) from error
            context = None if tls is None else make_context(tls)
            if is_segment_store(host, port, seconds_max=seconds_max, tls=context):
                sentence = f"{target} is a segment store's port, not a controller's"
                raise UnavailableError(sentence) from error
            raise UnavailableError(f"{target} does not serve: {error.details()}") from error
    if answer != SERVING:
        raise UnavailableError(f"{target} reports that it does not serve")


def _describe_other(
    host: str, port: int, tls: ClientTls | None, seconds_max: float, error: ProtocolError
) -> str:
    """Return the reason why a server that did not answer as a segment store is not one, or does not
    serve."""
    where = format_host_port(host, port)
    is_lost = isinstance(error, ConnectionLostError)
    # By TLS, a controller hangs up on clients that do not announce its protocol.
    if is_lost and tls is None:
        return str(error)
    try:
        ask_controller(host, port, seconds_max=seconds_max, tls=tls)
    except PravegaError:
        return str(error) if is_lost else f"{where} is not a segment store's port: {error}"
    return f"{where} is a controller's port, not a segment store's"


def _open_channel(target: str, tls: ClientTls | None) -> grpc.Channel:
    import grpc

    # Never use a proxy from the environment: the check must reach the server itself.
    options = [("grpc.enable_http_proxy", 0)]
    if tls is None:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, make_channel_credentials(tls), options=options)


def _raise_if_tls_differs(
    host: str, port: int, tls: ClientTls | None, seconds_max: float, cause: Exception
) -> None:
    """Raise ``UntrustedServerError`` if a server that did not answer speaks TLS and was asked
    without it, if it speaks no TLS and was asked with it, or if its certificate does not fit."""
    if tls is not None:
        mistake = find_tls_mistake(host, port, tls, seconds_max=seconds_max, words=COMMAND_LINE)
    elif speaks_tls(host, port, seconds_max=seconds_max):
        where = format_host_port(host, port)
        mistake = f"{where} speaks TLS: give --ca FILE, or say tls://{where}"
    else:
        return
    if mistake:
        raise UntrustedServerError(mistake) from cause
