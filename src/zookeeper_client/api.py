"""The interface of a session with ZooKeeper: the ``ZooKeeper`` protocol and its errors.

Invariants:
1. One object is one session: when ``lost`` is set it never works again, and its ephemeral nodes are
   gone or about to go. A caller that wants to continue opens another.
2. ``ConnectionLostError`` is doubt: the call may have taken effect or may still do so, before the
   session ends. A caller that changes something conditionally reads it again and compares.
3. Conditions are versions of nodes; ``ANY_VERSION`` means no condition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

ANY_VERSION = -1

OnChange = Callable[[], None]
"""Called at most once, in the event loop's thread, after the node that was read has changed, or
when changes can be missed because the connection is gone.

The loss of the session may not call it: a task that waits for a change must wait for ``lost``, too.
"""


class ZooKeeperError(Exception):
    """A call failed."""


class NoNodeError(ZooKeeperError):
    """The node, or the parent of a node to be made, does not exist."""


class NodeExistsError(ZooKeeperError):
    """There is a node of that name."""


class BadVersionError(ZooKeeperError):
    """Another process has changed the node."""


class NotEmptyError(ZooKeeperError):
    """The node has children."""


class ConnectionLostError(ZooKeeperError):
    """No answer came: the call may have taken effect or not."""


class SessionLostError(ZooKeeperError):
    """The session has ended. As with a lost connection, the call may have taken effect."""


class Node(NamedTuple):
    """A node's bytes, and how often they were set."""

    data: bytes
    version: int


class ZooKeeper(Protocol):
    """A session. Paths begin with a slash and are below the chroot of the connect string."""

    @property
    def lost(self) -> trio.Event:
        """Set when the session has ended, or must be treated as ended."""
        ...

    async def create(
        self, path: str, data: bytes, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        """Make a node and return its path, to which a sequential one has ten digits added."""
        ...

    async def get(self, path: str, on_change: OnChange | None = None) -> Node:
        """Read a node. A missing node's changes are not reported."""
        ...

    async def is_own(self, path: str) -> bool:
        """Return whether a node is an ephemeral one of this session."""
        ...

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Set a node that has this version, and return the new one."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node that has this version."""
        ...

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        """Return the sorted names of a node's children; only changes of names are reported."""
        ...


async def ensure_path(zookeeper: ZooKeeper, path: str) -> None:
    """Make a node without bytes, and the missing ones above it."""
    parts = path.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        with contextlib.suppress(NodeExistsError):
            await zookeeper.create("/" + "/".join(parts[:count]), b"")
