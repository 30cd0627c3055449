"""Controllers and segment stores with TLS and permissions, as small as clients need them.

The controller knows one user, ``alice`` with the password ``wonder land``, and gives tokens. The
store accepts the tokens that a function accepts.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from pravega_wire import controller_pb2 as pb
from pravega_wire.codec import encode
from pravega_wire.commands import HELLO, Command, Hello, Reply
from pravega_wire.connection import Append, Connection, Role
from pravega_wire.errors import ProtocolError

ALICE = "Basic " + base64.b64encode(b"alice:wonder land").decode()

Answer = Callable[[Command | Append], list[Reply]]


def make_token(issued: float, expires: float, number: int = 0) -> str:
    """Return a token with these times; its signature is not one."""
    claims = json.dumps({"iat": int(issued), "exp": int(expires), "n": number}).encode()
    body = base64.urlsafe_b64encode(claims).decode().rstrip("=")
    return f"e30.{body}.x"


@dataclass
class Controller:
    """A controller that wants to know who calls; ``calls`` has the methods and headers."""

    store_port: int = 0
    users: tuple[str, ...] = (ALICE,)
    permits: bool = True
    make_token: Callable[[int], str] = field(default=lambda number: f"token-{number}")
    calls: list[tuple[str, str]] = field(default_factory=list)
    accesses: list[Any] = field(default_factory=list)

    def _answer(self, method: str, reply: Callable[[Any], Any]) -> Any:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            found: dict[str, Any] = dict(context.invocation_metadata())
            self.calls.append((method, found.get("authorization", "")))
            if self.users and found.get("authorization") not in self.users:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "user or password is wrong")
            if not self.permits:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "alice may not")
            return reply(request)

        return answer

    def _token(self, request: pb.StreamInfo) -> pb.DelegationToken:
        self.accesses.append(pb.StreamInfo.AccessOperation.Name(request.accessOperation))
        return pb.DelegationToken(delegationToken=self.make_token(len(self.accesses)))

    def _segments(self, request: pb.StreamInfo) -> pb.SegmentRanges:
        segment = pb.SegmentId(streamInfo=request, segmentId=0)
        one = pb.SegmentRange(segmentId=segment, minKey=0.0, maxKey=1.0)
        return pb.SegmentRanges(segmentRanges=[one])

    @contextlib.contextmanager
    def running(self, certificate: Any = None, client_ca: bytes | None = None) -> Iterator[int]:
        """Serve, by TLS with a certificate; yield the port."""
        replies: dict[str, tuple[type, Callable[[Any], Any]]] = {
            "listScopes": (pb.ScopesRequest, lambda _: pb.ScopesResponse()),
            "getDelegationToken": (pb.StreamInfo, self._token),
            "getCurrentSegments": (pb.StreamInfo, self._segments),
            "getSegments": (
                pb.GetSegmentsRequest,
                lambda asked: pb.SegmentsAtTime(
                    segments=[
                        pb.SegmentsAtTime.SegmentLocation(
                            segmentId=pb.SegmentId(streamInfo=asked.streamInfo, segmentId=0)
                        )
                    ]
                ),
            ),
            "getURI": (
                pb.SegmentId,
                lambda _: pb.NodeUri(endpoint="127.0.0.1", port=self.store_port),
            ),
        }
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._answer(name, reply),
                request_deserializer=kind.FromString,  # type: ignore[attr-defined]
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (kind, reply) in replies.items()
        }
        service = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name
        server = grpc.server(ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        if certificate is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            pair = (
                certificate.private_key_pem.bytes(),
                b"".join(each.bytes() for each in certificate.cert_chain_pems),
            )
            credentials = grpc.ssl_server_credentials([pair], client_ca, client_ca is not None)
            port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


@contextlib.contextmanager
def running_store(answer: Answer, certificate: Any = None) -> Iterator[int]:
    """Serve connections to a segment store, by TLS with a certificate; yield the port."""
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=_converse, args=(peer, context, answer)))
                threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for thread in (acceptor, *threads):
                thread.join(10)


def _converse(peer: socket.socket, context: ssl.SSLContext | None, answer: Answer) -> None:
    connection = Connection(Role.SERVER)
    with contextlib.suppress(EOFError, OSError, ProtocolError), peer:
        plain = peer
        secured = plain if context is None else context.wrap_socket(plain, server_side=True)
        with secured:
            while data := secured.recv(65536):
                for command in connection.receive_data(data):
                    replies = [HELLO] if isinstance(command, Hello) else answer(command)
                    for reply in replies:
                        secured.sendall(encode(reply))
