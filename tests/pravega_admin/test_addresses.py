"""Addresses as users write them."""

import pytest

from pravega_admin.addresses import parse_host_port, parse_host_ports
from pravega_blocking.errors import UsageError


def test_addresses_are_read() -> None:
    assert parse_host_port("h:1") == ("h", 1)
    assert parse_host_port("[::1]:65535") == ("::1", 65535)
    assert parse_host_ports("a:1,b:2") == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("text", ["", "h", ":1", "h:", "h:0", "h:65536", "h:x", "h:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        parse_host_port(text)
