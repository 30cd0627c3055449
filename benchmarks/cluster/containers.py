"""Watches the containers of a running cluster from outside, the same way for every kind of store.

Owns: ``Containers``: who has which container by the map in ZooKeeper, and whether it is served.

A container is served when the segment store that the map names answers for a segment in it. Each
container gets one segment for that, straight over the wire.
"""

import itertools
import time
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from foreign_servers.peer import PeerFailedError
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pravega_cluster.nodes import find_paths
from pravega_cluster.records import Host, decode_map, encode_map
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import (
    CreateSegment,
    GetStreamSegmentInfo,
    Reply,
    Request,
    SegmentAlreadyExists,
    SegmentCreated,
    StreamSegmentInfo,
)
from pravega_wire.errors import ProtocolError
from pravega_wire.names import container_of, segment_name

PATHS = find_paths("pravega-cluster")
POLL_SECONDS = 0.01
REPLY_SECONDS_MAX = 2.0
SHARED_SECONDS_MAX = 150.0
SERVED_SECONDS_MAX = 90.0


class Containers:
    """See the module. A context manager, used by one thread."""

    def __init__(self, zookeeper: str, count: int) -> None:
        self._kazoo = KazooClient(hosts=zookeeper)
        self._count = count
        self._segments = [_segment_in(number, count) for number in range(count)]
        self._connections: dict[Host, SegmentConnection] = {}
        self._request_ids = itertools.count(1)

    def __enter__(self) -> Self:
        self._kazoo.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            connection.close()
        self._kazoo.stop()
        self._kazoo.close()

    def owners(self) -> dict[int, Host]:
        """Return the segment store of each container by the map, without containers that have
        none."""
        try:
            data, _ = self._kazoo.get(PATHS.container_map)
        except NoNodeError:
            return {}
        return {number: host for host, numbers in decode_map(data).items() for number in numbers}

    def give_all_to(self, host: Host) -> None:
        """Write the map, as the controller's part is played where there is none."""
        data = encode_map({host: frozenset(range(self._count))})
        self._kazoo.ensure_path(PATHS.container_map)
        self._kazoo.set(PATHS.container_map, data)

    def of(self, port: int) -> set[int]:
        """Return the containers of the segment store that listens here, by the map."""
        return {number for number, host in self.owners().items() if host.port == port}

    def wait_shared(self, stores: int) -> None:
        """Return when so many stores share the containers evenly and serve all of them.

        Raises ``PeerFailedError``.
        """
        deadline = time.monotonic() + SHARED_SECONDS_MAX
        while not self._are_shared(stores):
            if time.monotonic() > deadline:
                raise PeerFailedError(f"{stores} stores do not share the containers")
            time.sleep(POLL_SECONDS)
        self.wait_served(range(self._count))

    def wait_served(self, numbers: Iterable[int]) -> float:
        """Return the time since the epoch at which the last of these containers was served.

        Raises ``PeerFailedError``.
        """
        deadline = time.monotonic() + SERVED_SECONDS_MAX
        left = set(numbers)
        while True:
            owners = self.owners()
            left = {
                number
                for number in left
                if number not in owners or not self._is_served(number, owners[number])
            }
            if not left:
                return time.time()
            if time.monotonic() > deadline:
                raise PeerFailedError(f"containers {sorted(left)} are not served")
            time.sleep(POLL_SECONDS)

    def _are_shared(self, stores: int) -> bool:
        owners = list(self.owners().values())
        counts = [owners.count(host) for host in set(owners)]
        return (
            len(owners) == self._count and len(counts) == stores and max(counts) - min(counts) <= 1
        )

    def _is_served(self, number: int, host: Host) -> bool:
        """Return whether a store answers for the segment in a container.

        Makes the segment if needed.
        """
        segment = self._segments[number]
        answer = self._ask(host, GetStreamSegmentInfo(next(self._request_ids), segment, ""))
        if isinstance(answer, StreamSegmentInfo) and answer.exists:
            return True
        made = self._ask(host, CreateSegment(next(self._request_ids), segment, 0, 0, ""))
        return isinstance(made, SegmentCreated | SegmentAlreadyExists)

    def _ask(self, host: Host, request: Request) -> Reply | None:
        """Return the store's answer; None if there is none."""
        try:
            connection = self._connections.get(host)
            if connection is None:
                connection = SegmentConnection(*host.address, timeout=REPLY_SECONDS_MAX)
                self._connections[host] = connection
            return connection.call(request)
        except ProtocolError:
            with suppress(KeyError):
                self._connections.pop(host).close()
            return None


def _segment_in(number: int, count: int) -> str:
    """Return the name of a segment in this container."""
    names = (segment_name("cluster", "probe", each) for each in itertools.count())
    return next(name for name in names if container_of(name, count) == number)
