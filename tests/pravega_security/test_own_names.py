"""The names of this machine."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from pravega_security.certificates import make_server
from pravega_security.own_names import LOCAL, find_own_names


def test_the_local_names_come_first_and_none_twice() -> None:
    found = find_own_names()
    assert found[: len(LOCAL)] == LOCAL
    assert len(found) == len(set(found))


def test_an_address_of_the_machine_is_among_them() -> None:
    found = find_own_names()
    assert "127.0.0.1" in found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return
        assert probe.getsockname()[0] in found


def test_a_certificate_can_have_each(tmp_path: Path) -> None:
    make_server(tmp_path, now=0.0, names=find_own_names())
    assert all(
        not ipaddress.ip_address(each).is_link_local for each in find_own_names() if ":" in each
    )
