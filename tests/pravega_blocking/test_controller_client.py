"""Calls to a controller as blocking clients make them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from pravega_blocking.controller_client import ControllerClient
from pravega_wire import controller_pb2 as pb

ANSWER_SECONDS = 2.5
"""Longer than a call is patient, and than attempts to connect follow each other."""


@contextmanager
def busy_controller() -> Iterator[str]:
    """Yield the address of a server that answers each new connection after ``ANSWER_SECONDS``."""

    def list_scopes(request: pb.ScopesRequest, context: grpc.ServicerContext) -> pb.ScopesResponse:
        is_first = not request.continuationToken.token
        token = pb.ContinuationToken(token="end")
        return pb.ScopesResponse(scopes=["here"] if is_first else [], continuationToken=token)

    handler = grpc.unary_unary_rpc_method_handler(
        list_scopes,
        request_deserializer=pb.ScopesRequest.FromString,
        response_serializer=pb.ScopesResponse.SerializeToString,
    )
    service = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"listScopes": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:

        def copy(source: socket.socket, target: socket.socket) -> None:
            with source, target:
                try:
                    while data := source.recv(65536):
                        target.sendall(data)
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threads.submit(serve, client)

        def serve(client: socket.socket) -> None:
            if ended.wait(ANSWER_SECONDS):
                client.close()
                return
            behind = socket.create_connection(("127.0.0.1", port))
            threads.submit(copy, client.dup(), behind.dup())
            copy(behind, client)

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            server.stop(None).wait()


def test_a_controller_that_is_slow_to_answer_a_connection_is_waited_for() -> None:
    with busy_controller() as address, ControllerClient(address) as client:
        assert list(client.list_scopes()) == ["here"]
