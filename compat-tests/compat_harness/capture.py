"""Reads what crosses ports of this machine: which connections begin with TLS, and which do not.

Owns: ``Capture``, which reads the packets of the loopback interface, as ``tcpdump`` does.

It looks at the first bytes that the client of a connection sends, by their sequence number: packets
that the kernel drops on a busy machine leave connections out, and make none of them wrong. What a
bookie is asked first is a request for TLS (``START_TLS``), in the clear; the handshake follows it.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, TypeAlias

INTERFACE = "lo"
_IPV4: Final = 0x0800
_OUTGOING: Final = 4
"""Packets of this interface are seen twice: as they leave, and as they come."""
_SYN, _ACK = 0x02, 0x10
_BYTES_MAX = 256
"""Number of bytes of a packet that are looked at: headers, a request for TLS, a record's type."""
_HANDSHAKE, _ALERT = 22, 21
_REQUEST_BYTES_MAX = 64
_LAST: Final = 0xFFFFFFFF
_POLL_SECONDS = 0.2

Connection: TypeAlias = tuple[bytes, bytes, bytes]
"""Source and destination address, and both ports."""


@dataclass(slots=True)
class Seen:
    """The connections that a capture has seen.

    ``encrypted`` counts those that begin with TLS, by port; ``clear`` has the port and the first
    bytes of each other one.
    """

    encrypted: Counter[int] = field(default_factory=Counter)
    clear: list[tuple[int, bytes]] = field(default_factory=list)


class Capture:
    """A context manager, for root alone. Raises ``PermissionError`` for others.

    ``ports`` are to be looked at. ``asking_ports`` are those of bookies.
    """

    def __init__(self, ports: Collection[int], *, asking_ports: Collection[int] = ()) -> None:
        self.seen = Seen()
        self._ports = frozenset(ports)
        self._asking_ports = frozenset(asking_ports)
        self._begins: dict[Connection, tuple[int, bool]] = {}
        """Of each new connection, the sequence number of what must be a handshake, and whether it
        may be a request for one."""
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_IPV4))
        self._socket.bind((INTERFACE, _IPV4))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
        self._socket.settimeout(_POLL_SECONDS)
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Seen:
        self._thread.start()
        return self.seen

    def __exit__(self, *exception: object) -> None:
        self._is_ending.set()
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while not self._is_ending.is_set():
            try:
                packet, address = self._socket.recvfrom(_BYTES_MAX)
            except TimeoutError:
                continue
            if address[2] != _OUTGOING:
                self._look_at(packet)

    def _look_at(self, packet: bytes) -> None:
        header = (packet[0] & 0x0F) * 4
        if packet[9] != socket.IPPROTO_TCP or len(packet) < header + 20:
            return
        (port,) = struct.unpack_from("!H", packet, header + 2)
        if port not in self._ports:
            return
        connection = packet[12:16], packet[16:20], packet[header : header + 4]
        (sequence,) = struct.unpack_from("!I", packet, header + 4)
        if packet[header + 13] & (_SYN | _ACK) == _SYN:
            self._begins[connection] = (sequence + 1) & _LAST, port in self._asking_ports
            return
        first = packet[header + (packet[header + 12] >> 4) * 4 :]
        begin, may_ask = self._begins.get(connection, (None, False))
        if not first or begin != sequence:
            return
        del self._begins[connection]
        if may_ask and len(first) >= 4:
            (size,) = struct.unpack_from("!I", first)
            if size <= _REQUEST_BYTES_MAX:
                self._begins[connection] = (sequence + 4 + size) & _LAST, False
                return
        if first[0] in (_HANDSHAKE, _ALERT) and first[1:2] == b"\3":
            self.seen.encrypted[port] += 1
        else:
            self.seen.clear.append((port, first[:16]))
