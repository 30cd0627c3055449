"""Addresses as users write them."""

import pytest

from segstore_client.addresses import (
    DEFAULT_CONTROLLER,
    parse_controller_address,
    parse_host_port,
    parse_host_ports,
    parse_server_address,
)
from segstore_client.errors import UsageError


def test_addresses_are_read() -> None:
    assert parse_host_port("h:1") == ("h", 1)
    assert parse_host_port("[::1]:65535") == ("::1", 65535)
    assert parse_host_ports("a:1,b:2") == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("text", ["", "h", ":1", "h:", "h:0", "h:65536", "h:x", "h:-1", "h:١"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        parse_host_port(text)


@pytest.mark.parametrize(
    ("text", "controllers"),
    [
        (DEFAULT_CONTROLLER, ("localhost:9090",)),
        ("tcp://127.0.0.1:9090,127.0.0.1:9091", ("127.0.0.1:9090", "127.0.0.1:9091")),
        ("pravega://a:1,b:2", ("a:1", "b:2")),
        ("a:1, b:2", ("a:1", "b:2")),
        ("tcp://a:1,b:2/", ("a:1", "b:2")),
        ("tcp://a", ("a:9090",)),
        ("a,b:2", ("a:9090", "b:2")),
        ("tcp://[::1]:1,[::1]", ("[::1]:1", "[::1]:9090")),
    ],
)
def test_controllers_are_named_as_official_clients_name_them(
    text: str, controllers: tuple[str, ...]
) -> None:
    assert parse_controller_address(text) == (controllers, False)


@pytest.mark.parametrize(
    "text", ["", "tcp://", "tcp://a:1,", "tcp://a:1,tcp://b:2", "http://a:1", "tcp://a:x", "a:0"]
)
def test_what_names_no_controller_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a controller address such as"):
        parse_controller_address(text)


@pytest.mark.parametrize("scheme", ["tls", "ssl", "pravegas"])
def test_the_scheme_says_whether_to_use_tls(scheme: str) -> None:
    assert parse_controller_address(f"{scheme}://a:1,b") == (("a:1", "b:9090"), True)


def test_a_server_may_be_named_with_a_scheme() -> None:
    assert parse_server_address("h:1") == ("h:1", None)
    assert parse_server_address("tls://h:1,i:2") == ("h:1,i:2", True)
    assert parse_server_address("tcp://h:1") == ("h:1", False)
    with pytest.raises(UsageError, match="'http' is no scheme of a server"):
        parse_server_address("http://h:1")
