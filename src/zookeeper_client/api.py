"""What users of ZooKeeper ask of it: the ``ZooKeeper`` protocol and its errors.

Invariants:
1. One object is one session: when ``lost`` is set it never works again, and its ephemeral nodes
   are gone or about to go. A caller that wants to continue opens another.
2. ``ConnectionLostError`` is doubt: what was asked may have happened or may still happen, before
   the session ends. A caller that changes something conditionally reads it again and compares.
3. Conditions are versions of nodes; ``ANY_VERSION`` is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

ANY_VERSION = -1

OnChange = Callable[[], None]
"""Called at most once, in the event loop's thread, after what was read has changed, or when
changes can be missed since the connection is gone.

It need not be called when the session is lost: a task that waits for a change has to wait for
``lost`` too.
"""


class ZooKeeperError(Exception):
    """Any failure of a call."""


class NoNodeError(ZooKeeperError):
    """The node, or the parent of a node to be made, does not exist."""


class NodeExistsError(ZooKeeperError):
    """There is a node of that name."""


class BadVersionError(ZooKeeperError):
    """Somebody has changed the node."""


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
        """Read a node. Without one no change is reported either."""
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
        """Return the names of a node's children, sorted. Changes concern the names, not the
        bytes.
        """
        ...


async def ensure_path(zookeeper: ZooKeeper, path: str) -> None:
    """Make a node without bytes, and those above it, where they are missing."""
    parts = path.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        with contextlib.suppress(NodeExistsError):
            await zookeeper.create("/" + "/".join(parts[:count]), b"")
