"""Declares the interface of a session with ZooKeeper: the ``ZooKeeper`` protocol and its errors.
One object is one session. When ``lost`` is set, the object cannot be used any more; a caller that
wants to continue opens another session. After a ``ConnectionLostError`` the call may have taken
effect, or may still do so until the session ends: a caller that has changed something reads it
again and compares.

Invariants:
1. When a session ends, its ephemeral nodes are deleted, and later calls raise ``ZooKeeperError``.
   Held by ``test_the_server_in_memory``.
2. When a node has another version than the condition of a change, the change raises
   ``BadVersionError``. Held by ``test_the_server_in_memory``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

import trio

ANY_VERSION = -1

OnChange = Callable[[], None]
"""Called at most once, in the event loop's thread, when the node that was read has changed, or when
the connection is lost and changes may be missed.

It may not be called when the session is lost: a task that waits for a change must also wait for
``lost``.
"""


class ZooKeeperError(Exception):
    """The base class of all errors of calls."""


class NoNodeError(ZooKeeperError):
    """Raised when the node does not exist, or the parent of a node to be made."""


class NodeExistsError(ZooKeeperError):
    """Raised when a node of that name exists already."""


class BadVersionError(ZooKeeperError):
    """Raised when the node has another version: another process has changed it."""


class NotEmptyError(ZooKeeperError):
    """Raised when a node to be deleted has children."""


class ConnectionLostError(ZooKeeperError):
    """Raised when no answer came. The call may have taken effect or not."""


class SessionLostError(ZooKeeperError):
    """Raised when the session has ended. The call may have taken effect or not."""


class Node(NamedTuple):
    """A node's bytes and its version, which counts the changes of the bytes."""

    data: bytes
    version: int


class ZooKeeper(Protocol):
    """One session. Paths begin with a slash; they are below the chroot of the connect string."""

    @property
    def lost(self) -> trio.Event:
        """Set when the session has ended, or may have ended."""
        ...

    async def create(
        self, path: str, data: bytes, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        """Make a node and return its path. The name of a sequential node gets ten digits at its
        end."""
        ...

    async def get(self, path: str, on_change: OnChange | None = None) -> Node:
        """Read a node. ``on_change`` is called when it changes, but not when a missing node is
        made."""
        ...

    async def is_own(self, path: str) -> bool:
        """Return whether a node is an ephemeral node of this session."""
        ...

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Set a node's bytes if it has this version; return the new version."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node if it has this version."""
        ...

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        """Return the sorted names of a node's children. ``on_change`` is called when a child is
        made or deleted."""
        ...


async def ensure_path(zookeeper: ZooKeeper, path: str) -> None:
    """Make a node without bytes, and the missing nodes above it."""
    parts = path.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        with contextlib.suppress(NodeExistsError):
            await zookeeper.create("/" + "/".join(parts[:count]), b"")
