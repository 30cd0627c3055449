"""Finds the bookies that are registered in ZooKeeper, and their addresses."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from bookkeeper_client.data_formats_pb2 import BookieServiceInfoFormat
from bookkeeper_client.errors import BookKeeperError
from zookeeper_client.api import NoNodeError, ZooKeeper

_PROTOCOL = "bookie-rpc"
_READ_ONLY = "readonly"


class BookieRegistry:
    """The bookies below one root. A bookie keeps its id; its address may change."""

    def __init__(self, zookeeper: ZooKeeper, root: str) -> None:
        self._zookeeper = zookeeper
        self._available = f"{root}/available"
        self._cookies = f"{root}/cookies"

    async def find_writable(self) -> list[str]:
        """Return the ids of the bookies that accept writes. A bookie that has just died may be
        among them."""
        return [name for name in await self._names(self._available) if name != _READ_ONLY]

    async def find_read_only(self) -> list[str]:
        """Return the ids of the bookies that only answer reads, for example because their disk is
        full."""
        return sorted(await self._names(f"{self._available}/{_READ_ONLY}"))

    async def find_known(self) -> list[str]:
        """Return the ids of all bookies that were ever started and not decommissioned."""
        return await self._names(self._cookies)

    async def _names(self, path: str) -> list[str]:
        try:
            return await self._zookeeper.children(path)
        except NoNodeError:
            return []

    async def find_address(self, bookie: str) -> tuple[str, int]:
        """Return the host and port of a bookie, or raise ``BookKeeperError``."""
        for path in (f"{self._available}/{bookie}", f"{self._available}/{_READ_ONLY}/{bookie}"):
            try:
                data, _ = await self._zookeeper.get(path)
            except NoNodeError:
                continue
            address = _decode_address(data)
            if address is not None:
                return address
        host, _, port = bookie.rpartition(":")
        if host and port.isdecimal():
            return host, int(port)
        raise BookKeeperError(f"the address of bookie {bookie} is unknown")


def _decode_address(data: bytes) -> tuple[str, int] | None:
    message = BookieServiceInfoFormat()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    for endpoint in message.endpoints:
        if endpoint.protocol == _PROTOCOL:
            return endpoint.host, endpoint.port
    return None
