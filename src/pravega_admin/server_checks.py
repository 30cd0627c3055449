"""Checks whether a server serves, by its own protocol.

Owns: ``ask_segment_store`` and ``ask_controller``.

An open port proves little: the kernel accepts connections for a process that hangs, and a segment
store listens before its containers are recovered. So a segment store must answer Hello, and a
controller the health service of gRPC; both do so from their event loops, and only when they serve.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from pravega_blocking.errors import TimedOutError, UnavailableError
from pravega_wire.blocking import ReplyTimeoutError, SegmentConnection
from pravega_wire.commands import GetStreamSegmentInfo, WrongHost
from pravega_wire.errors import ProtocolError
from pravega_wire.names import CONTAINER_METADATA_PREFIX

CHECK_METHOD = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"
"""The bytes of the answer of a server that serves: field 1, number 1."""


def ask_segment_store(
    host: str, port: int, *, seconds_max: float, containers: Iterable[int] = ()
) -> frozenset[int]:
    """Return those of the containers that the store serves.

    Raises ``TimedOutError`` when the store does not answer in time, and ``UnavailableError`` when
    it cannot be reached or hangs up.
    """
    served = set()
    try:
        with SegmentConnection(host, port, timeout=seconds_max) as connection:
            for container in containers:
                # The name of each container's metadata segment ends with the container's number.
                name = f"{CONTAINER_METADATA_PREFIX}{container}"
                question = GetStreamSegmentInfo(connection.next_request_id(), name, "")
                if not isinstance(connection.call(question), WrongHost):
                    served.add(container)
    except ReplyTimeoutError as error:
        raise TimedOutError(str(error)) from error
    except ProtocolError as error:
        raise UnavailableError(str(error)) from error
    return frozenset(served)


def ask_controller(host: str, port: int, *, seconds_max: float) -> None:
    """Return if the controller serves. Raises errors as ``ask_segment_store`` does."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # A proxy in the environment is for others' addresses.
    with grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = channel.unary_unary(CHECK_METHOD, None, None)(b"", timeout=seconds_max)
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                sentence = f"no reply of {target} within {seconds_max:g} s"
                raise TimedOutError(sentence) from error
            # The original's controllers do not know the question, but they answer.
            if code is grpc.StatusCode.UNIMPLEMENTED:
                return
            raise UnavailableError(f"{target} does not serve: {error.details()}") from error
    if answer != SERVING:
        raise UnavailableError(f"{target} reports that it does not serve")
