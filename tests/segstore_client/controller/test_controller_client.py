"""Calls to a controller as blocking clients make them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from pravega_wire import controller_pb2 as pb
from segstore_client.access.credentials import Credentials
from segstore_client.access.settings import ClientAccess
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import PravegaError, UnavailableError
from support.secure_servers import ALICE, Controller

ANSWER_SECONDS = 2.5
"""Longer than a call is patient, and than attempts to connect follow each other."""


@contextmanager
def running_controller(ended: pb.TxnStatus.Status = pb.TxnStatus.SUCCESS) -> Iterator[int]:
    """Yield the port of a server that lists one scope, and answers how transactions ended."""

    def list_scopes(request: pb.ScopesRequest, context: grpc.ServicerContext) -> pb.ScopesResponse:
        is_first = not request.continuationToken.token
        token = pb.ContinuationToken(token="end")
        return pb.ScopesResponse(scopes=["here"] if is_first else [], continuationToken=token)

    def end(request: pb.TxnRequest, context: grpc.ServicerContext) -> pb.TxnStatus:
        return pb.TxnStatus(status=ended)

    listing = grpc.unary_unary_rpc_method_handler(
        list_scopes,
        request_deserializer=pb.ScopesRequest.FromString,
        response_serializer=pb.ScopesResponse.SerializeToString,
    )
    ending = grpc.unary_unary_rpc_method_handler(
        end,
        request_deserializer=pb.TxnRequest.FromString,
        response_serializer=pb.TxnStatus.SerializeToString,
    )
    handlers = {
        "listScopes": listing,
        "commitTransaction": ending,
        "abortTransaction": ending,
    }
    service = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@contextmanager
def busy_controller() -> Iterator[str]:
    """Yield the address of a server that answers each new connection after ``ANSWER_SECONDS``."""
    ended = threading.Event()
    with (
        running_controller() as port,
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor() as threads,
    ):

        def copy(source: socket.socket, target: socket.socket) -> None:
            with source, target:
                try:
                    while data := source.recv(65536):
                        target.sendall(data)
                    target.shutdown(socket.SHUT_RDWR)  # ends the copy of the other direction
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


def test_a_controller_that_is_slow_to_answer_a_connection_is_waited_for() -> None:
    with busy_controller() as address, ControllerClient(address) as client:
        assert list(client.list_scopes()) == ["here"]


def test_a_controller_that_never_answered_is_not_waited_for_as_long() -> None:
    with (
        ControllerClient("tcp://127.0.0.1:9", patience=600.0, first_patience=0.2) as client,
        pytest.raises(UnavailableError, match=r"no controller answers at 127\.0\.0\.1:9"),
    ):
        client.create_scope("any")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:9", "nothing listens there"),
        ("no-such-host.invalid:9090", "no-such-host.invalid is not a known host"),
    ],
)
def test_an_address_at_which_nothing_can_be_is_told_from_a_server_that_is_silent(
    address: str, reason: str
) -> None:
    with (
        ControllerClient(address, first_patience=0) as client,
        pytest.raises(UnavailableError, match=f"no controller answers at {address}: {reason}"),
    ):
        client.create_scope("any")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_of_several_controllers_one_that_answers_is_called() -> None:
    with (
        running_controller() as port,
        ControllerClient(f"tcp://127.0.0.1:{free_port()},localhost:{port}", patience=0) as client,
    ):
        assert list(client.list_scopes()) == ["here"]


def test_a_controller_that_goes_away_is_replaced_by_the_next_one() -> None:
    with running_controller() as second:
        with running_controller() as first:
            address = f"pravega://127.0.0.1:{first},127.0.0.1:{second}"
            client = ControllerClient(address, patience=0)
            assert list(client.list_scopes()) == ["here"]
        with client:
            assert list(client.list_scopes()) == ["here"]


def test_when_none_of_several_controllers_answers_all_are_named() -> None:
    ports = [free_port(), free_port()]
    address = ",".join(f"127.0.0.1:{port}" for port in ports)
    with (
        ControllerClient(address, patience=0) as client,
        pytest.raises(UnavailableError, match=f"no controller answers at {address}"),
    ):
        list(client.list_scopes())


def test_a_listing_ends_at_the_first_empty_page_although_it_has_a_token() -> None:
    with running_controller() as port, ControllerClient(f"127.0.0.1:{port}") as client:
        assert list(client.list_scopes()) == ["here"]


def test_a_failed_call_names_its_scope_or_stream() -> None:
    with running_controller() as port, ControllerClient(f"127.0.0.1:{port}", patience=0) as client:
        with pytest.raises(PravegaError, match="scope demo"):
            client.create_scope("demo")
        with pytest.raises(PravegaError, match="stream demo/orders"):
            client.current_segments("demo", "orders")


@pytest.mark.parametrize(
    ("status", "is_so"), [(pb.TxnStatus.SUCCESS, True), (pb.TxnStatus.FAILURE, False)]
)
def test_a_client_is_told_whether_a_transaction_ended_as_it_asked(
    status: pb.TxnStatus.Status, is_so: bool
) -> None:
    with running_controller(status) as port, ControllerClient(f"127.0.0.1:{port}") as client:
        assert client.commit_transaction("s", "a", bytes(16)) is is_so
        assert client.abort_transaction("s", "a", bytes(16)) is is_so


def test_credentials_go_with_each_call() -> None:
    controller = Controller()
    access = ClientAccess(Credentials.from_password("alice", "wonder land"))
    with (
        controller.running() as port,
        ControllerClient(f"127.0.0.1:{port}", patience=0, access=access) as client,
    ):
        list(client.list_scopes())
        client.current_segments("s", "a")
    assert {header for _, header in controller.calls} == {ALICE}
    assert len(controller.calls) == 2
