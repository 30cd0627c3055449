"""The names and addresses by which others may reach this machine.

Owns: ``find_own_names``. It asks the system alone; the full host name may take a look into DNS.
"""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_ASK_ADDRESS: Final = 0x8915
"""The request for the address of an interface (``SIOCGIFADDR``)."""
_IPV6_ADDRESSES: Final = Path("/proc/net/if_inet6")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*")


def find_own_names() -> tuple[str, ...]:
    """Return ``localhost`` and its addresses, the host names, and the addresses of interfaces."""
    hosts = [name for name in (socket.gethostname(), socket.getfqdn()) if _is_host(name)]
    found = [*LOCAL, *hosts, *_ipv4_addresses(), *_ipv6_addresses()]
    return tuple(dict.fromkeys(found))


def _is_host(name: str) -> bool:
    return len(name) <= 253 and _HOST.fullmatch(name) is not None and not name.endswith(".arpa")


def _ipv4_addresses() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asked.fileno(), _ASK_ADDRESS, request)
            except OSError:
                # The interface has none.
                continue
            yield socket.inet_ntoa(answer[20:24])


def _ipv6_addresses() -> Iterator[str]:
    try:
        lines = _IPV6_ADDRESSES.read_text("ascii").splitlines()
    except OSError:
        return
    for line in lines:
        address = ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))
        # Clients reach the others only with the name of an interface.
        if not address.is_link_local:
            yield str(address)
