"""Encodes and decodes hosts and the map of containers as bytes in ZooKeeper, in Pravega's format.

Owns: ``Host``, ``ContainerMap``, and their layouts, each a versioned record (version 0,
revision 0).

    host       = text ip | int32 port | text endpoint
    containers = compact count | int32 container ...
    map        = compact count | host, containers ...      each a record of its own

A host finds itself in the map by its exact text: the same address with another spelling is another
host.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.versioned import (
    VersionedReader,
    write_compact_int,
    write_text,
    write_versioned,
)

_INT32 = struct.Struct(">i")
PORT_MAX = 65535


class ClusterRecordError(ValueError):
    """Raised when a name or bytes in ZooKeeper are not valid."""


@dataclass(frozen=True, slots=True, order=True)
class Host:
    """The address of a segment store or a controller."""

    ip: str
    port: int
    endpoint: str = ""
    """Empty for a segment store; a unique id for a controller."""

    @property
    def node_name(self) -> str:
        """Return the name under which the host registers, with a colon after the port."""
        return f"{self.ip}:{self.port}:{self.endpoint}"

    @property
    def address(self) -> tuple[str, int]:
        """Return the address to which clients connect."""
        return self.ip, self.port


ContainerMap: TypeAlias = Mapping[Host, frozenset[int]]
"""The containers of each segment store. No container belongs to two stores."""


def parse_node_name(name: str) -> Host:
    """Return the host that is registered under this name. Raises ``ClusterRecordError``."""
    ip, _, rest = name.rpartition(":")[0].rpartition(":")
    endpoint = name.rpartition(":")[2]
    if not ip or not (rest.isascii() and rest.isdecimal()) or int(rest) > PORT_MAX:
        raise ClusterRecordError(f"{name!r} is not the name of a host")
    return Host(ip, int(rest), endpoint)


def encode_host(host: Host) -> bytes:
    """Return the bytes of a host."""
    data = write_text(host.ip) + _INT32.pack(host.port) + write_text(host.endpoint)
    return write_versioned([data])


def encode_map(container_map: ContainerMap) -> bytes:
    """Return the bytes of a map. Equal maps have equal bytes."""
    parts = [write_compact_int(len(container_map))]
    for host in sorted(container_map):
        containers = sorted(container_map[host])
        packed = b"".join(map(_INT32.pack, containers))
        parts += [encode_host(host), write_versioned([write_compact_int(len(containers)) + packed])]
    return write_versioned([b"".join(parts)])


def decode_map(data: bytes) -> dict[Host, frozenset[int]]:
    """Return the decoded map. Raises ``ClusterRecordError``."""
    found: dict[Host, frozenset[int]] = {}
    taken: set[int] = set()
    try:
        reader = VersionedReader(data).read_revision()
        for _ in range(reader.read_compact_int()):
            host = _read_host(reader)
            inner = reader.read_revision()
            containers = [inner.read_int() for _ in range(inner.read_compact_int())]
            if host in found or not taken.isdisjoint(containers):
                raise ClusterRecordError(f"{host.node_name} or its containers are in the map twice")
            taken.update(containers)
            found[host] = frozenset(containers)
    except RemoteProtocolError as error:
        raise ClusterRecordError(f"a damaged map of containers: {error}") from error
    return found


def _read_host(reader: VersionedReader) -> Host:
    inner = reader.read_revision()
    return Host(inner.read_text(), inner.read_int(), inner.read_text())
