"""A ZooKeeper in memory, with sessions that end and answers that get lost.

Owns: ``MemoryZooKeeper``, which all sessions share, and ``MemorySession``. A call takes effect in
one step, after one turn of the event loop. ``lose_answer`` decides for each call whether its answer
is lost, and whether it takes effect all the same. When a session is ended, its ephemeral nodes are
deleted at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

import trio

from zookeeper_client.api import (
    ANY_VERSION,
    BadVersionError,
    ConnectionLostError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OnChange,
    SessionLostError,
)


class Loss(Enum):
    """Outcome of a call."""

    NONE = "it is answered"
    ANSWER = "it takes effect, and its answer is lost"
    CALL = "it is lost itself"


@dataclass(slots=True)
class _Node:
    data: bytes
    owner: MemorySession | None = None
    version: int = 0
    made_count: int = 0
    """Number of sequential children that were created below the node."""
    children: dict[str, _Node] = field(default_factory=dict)
    data_watches: list[tuple[MemorySession, OnChange]] = field(default_factory=list)
    child_watches: list[tuple[MemorySession, OnChange]] = field(default_factory=list)


class MemoryZooKeeper:
    """The server."""

    def __init__(self) -> None:
        self.lose_answer: Callable[[str], Loss] = lambda path: Loss.NONE
        self._root = _Node(b"")

    def open_session(self) -> MemorySession:
        """Open a session as ``open_zookeeper`` does."""
        return MemorySession(self)

    def end_session(self, session: MemorySession) -> None:
        """End a session, as a server does that has received nothing from it for too long."""
        if not session.lost.is_set():
            session.lost.set()
            self._drop_nodes_of(session, self._root)

    def find(self, path: str) -> _Node:
        """Return the node of a path. Raises ``NoNodeError``."""
        node = self._root
        for name in _split(path):
            if name not in node.children:
                raise NoNodeError(path)
            node = node.children[name]
        return node

    def _drop_nodes_of(self, session: MemorySession, node: _Node) -> None:
        for name, child in list(node.children.items()):
            self._drop_nodes_of(session, child)
            if child.owner is session:
                self.drop(node, name)

    def drop(self, parent: _Node, name: str) -> None:
        """Remove a node; call its watches and the child watches of its parent."""
        node = parent.children.pop(name)
        tell(node.data_watches)
        tell(node.child_watches)
        tell(parent.child_watches)


def tell(watches: list[tuple[MemorySession, OnChange]]) -> None:
    """Call these watches later in the event loop, and forget them."""
    for session, on_change in watches:
        if not session.lost.is_set():
            trio.lowlevel.current_trio_token().run_sync_soon(on_change)
    watches.clear()


def _split(path: str) -> list[str]:
    assert path.startswith("/"), path
    return [name for name in path.split("/") if name]


class MemorySession:
    """See ``ZooKeeper``."""

    def __init__(self, server: MemoryZooKeeper) -> None:
        self.lost = trio.Event()
        self._server = server

    async def create(
        self, path: str, data: bytes, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        """See ``ZooKeeper``."""
        await trio.lowlevel.checkpoint()
        with self._carry_out(path) as is_lost:
            if is_lost:
                return path
            above, _, name = path.rpartition("/")
            parent = self._server.find(above or "/")
            if is_sequential:
                name = f"{name}{parent.made_count:010}"
                parent.made_count += 1
            if name in parent.children:
                raise NodeExistsError(path)
            parent.children[name] = _Node(data, self if is_ephemeral else None)
            tell(parent.child_watches)
            return f"{above}/{name}"

    async def get(self, path: str, on_change: OnChange | None = None) -> Node:
        """See ``ZooKeeper``."""
        await trio.lowlevel.checkpoint()
        with self._carry_out(path):
            node = self._server.find(path)
            if on_change is not None:
                node.data_watches.append((self, on_change))
            return Node(node.data, node.version)

    async def is_own(self, path: str) -> bool:
        """See ``ZooKeeper``."""
        await trio.lowlevel.checkpoint()
        with self._carry_out(path):
            return self._server.find(path).owner is self

    async def set(self, path: str, data: bytes, version: int) -> int:
        """See ``ZooKeeper``."""
        await trio.lowlevel.checkpoint()
        with self._carry_out(path) as is_lost:
            if is_lost:
                return version
            node = self._server.find(path)
            if version not in (ANY_VERSION, node.version):
                raise BadVersionError(path)
            node.data = data
            node.version += 1
            tell(node.data_watches)
            return node.version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See ``ZooKeeper``."""
        await trio.lowlevel.checkpoint()
        with self._carry_out(path) as is_lost:
            if is_lost:
                return
            above, _, name = path.rpartition("/")
            node = self._server.find(path)
            if version not in (ANY_VERSION, node.version):
                raise BadVersionError(path)
            if node.children:
                raise NotEmptyError(path)
            self._server.drop(self._server.find(above or "/"), name)

    async def children(self, path: str, on_change: OnChange | None = None) -> list[str]:
        """See ``ZooKeeper``."""
        await trio.lowlevel.checkpoint()
        with self._carry_out(path):
            node = self._server.find(path)
            if on_change is not None:
                node.child_watches.append((self, on_change))
            return sorted(node.children)

    @contextmanager
    def _carry_out(self, path: str) -> Iterator[bool]:
        """Run the call in the block, which gets True when the call must not take effect."""
        if self.lost.is_set():
            raise SessionLostError("the session has ended")
        loss = self._server.lose_answer(path)
        if loss is Loss.NONE:
            yield False
            return
        try:
            yield loss is Loss.CALL
        finally:
            # This replaces the answer or error of the call.
            raise ConnectionLostError(path)
