"""A ZooKeeper whose sessions are lost and whose replies are late, and a client like kazoo's.

Owns: ``SimulatedZooKeeper``, the server, and ``SimulatedKazoo``, which stands where ``KazooClient``
does below the real ``KazooSession``.

Invariants:
1. The server ends a session that it has not heard of for the session's time-out, and tells nobody:
   its client learns it when it connects again, or from its own timer.
2. Requests of a connection are carried out in their order. When the connection breaks a prefix of
   those under way is still carried out, perhaps late, but not after the client has connected again.
   The client gets none of the answers: each of its calls is in doubt.
3. Watches are of a connection: its end tells them, and the server forgets them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import kazoo.exceptions
import trio
from kazoo.protocol.states import KazooState

from cluster.links import Link
from cluster.processes import Process
from support.models.memory_server import MemorySession, MemoryZooKeeper
from zookeeper_client import api
from zookeeper_client.kazoo_session import KazooSession

TICK_SECONDS = 0.2
LATE_SECONDS_MAX = 2.0
"""Maximum delay, in seconds, of messages that were under way when a connection broke."""
CONNECT_SECONDS_MAX = 15.0
RETRY_SECONDS_MAX = 0.5

_ERRORS: dict[type[api.ZooKeeperError], type[Exception]] = {
    api.NoNodeError: kazoo.exceptions.NoNodeError,
    api.NodeExistsError: kazoo.exceptions.NodeExistsError,
    api.BadVersionError: kazoo.exceptions.BadVersionError,
    api.NotEmptyError: kazoo.exceptions.NotEmptyError,
}


class Stat(NamedTuple):
    """The two facts about a node that its reader uses."""

    version: int
    ephemeralOwner: int


@dataclass(frozen=True, slots=True)
class Request:
    """A call under way."""

    kind: str
    path: str
    data: bytes = b""
    version: int = api.ANY_VERSION
    is_ephemeral: bool = False
    is_sequential: bool = False
    watch: int = 0
    """The number by which a change is told; 0 for none."""


@dataclass(frozen=True, slots=True)
class Ping:
    """The message that the other side lives."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The message that a watched node has changed."""

    watch: int


class _Messages:
    """One direction of a connection: its messages come late, but in order."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: deque[tuple[float, Any]] = deque()
        self._last_at = 0.0
        self._changed = trio.Event()
        self.has_ended = False

    def put(self, message: object) -> None:
        """Send."""
        if not self.has_ended:
            self._last_at = max(self._last_at, trio.current_time() + self._link.delay())
            self._waiting.append((self._last_at, message))
            self._notify()

    def end(self, kept: int, late: float) -> None:
        """Send nothing any more; so many messages still arrive, and so late."""
        if not self.has_ended:
            self.has_ended = True
            self._waiting = deque((at + late, each) for at, each in list(self._waiting)[:kept])
            self._notify()

    @property
    def count(self) -> int:
        """Return the number of messages under way."""
        return len(self._waiting)

    async def receive(self) -> Any:
        """Return the next message; None at the end."""
        await trio.lowlevel.checkpoint()
        while True:
            now = trio.current_time()
            if self._waiting and self._waiting[0][0] <= now:
                return self._waiting.popleft()[1]
            if not self._waiting and self.has_ended:
                return None
            with trio.move_on_after(self._waiting[0][0] - now if self._waiting else float("inf")):
                await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class Connection:
    """A connection between one client and the server."""

    def __init__(self, session: Session, link: Link, random: Random) -> None:
        self.session = session
        self.to_server = _Messages(link)
        self.to_client = _Messages(link)
        self._random = random

    def break_off(self) -> None:
        """Break the connection: a prefix of the messages under way arrives at the server, none
        at the client."""
        kept = self._random.randint(0, self.to_server.count)
        self.to_server.end(
            kept, self._random.choice([0.0, LATE_SECONDS_MAX]) * self._random.random()
        )
        self.to_client.end(0, 0.0)


@dataclass(slots=True)
class Session:
    """The server's state of a session."""

    number: int
    owner: str
    seconds: float
    memory: MemorySession
    heard_at: float
    connection: Connection | None = None
    has_ended: bool = False
    read: set[str] = field(default_factory=set)
    """The paths that its client knows something of in this session."""


OnWrite = Callable[[Session, Request], None]


class SimulatedZooKeeper:
    """The server, or an ensemble of them that is there or is not."""

    def __init__(self, nursery: trio.Nursery, random: Random) -> None:
        self.tree = MemoryZooKeeper()
        self.is_up = True
        self.sessions: dict[int, Session] = {}
        self.on_write: OnWrite = lambda session, request: None
        """Called after each change of a node, in the same step."""
        self._numbers: dict[MemorySession, int] = {}
        self._nursery = nursery
        self._random = random

    async def run(self) -> None:
        """End sessions that are silent for too long."""
        while True:
            await trio.sleep(TICK_SECONDS)
            if self.is_up:
                for session in list(self.sessions.values()):
                    if session.heard_at + session.seconds < trio.current_time():
                        self.end(session)

    def end(self, session: Session) -> None:
        """End a session."""
        if not session.has_ended:
            session.has_ended = True
            del self.sessions[session.number]
            self.tree.end_session(session.memory)
            if session.connection is not None:
                session.connection.break_off()

    def go_down(self) -> None:
        """Answer nobody; no session ends meanwhile."""
        self.is_up = False
        for session in self.sessions.values():
            if session.connection is not None:
                session.connection.break_off()

    def come_up(self) -> None:
        """Start again, with all sessions that there were."""
        self.is_up = True
        for session in self.sessions.values():
            session.heard_at = trio.current_time()

    def accept(
        self, number: int | None, owner: str, seconds: float, link: Link
    ) -> Connection | None:
        """Connect a client to its session, or to a new one; None if that has ended."""
        now = trio.current_time()
        if number is None:
            number = len(self._numbers) + 1
            memory = self.tree.open_session()
            self._numbers[memory] = number
            self.sessions[number] = Session(number, owner, seconds, memory, now)
        session = self.sessions.get(number)
        if session is None:
            return None
        if session.connection is not None:
            session.connection.to_server.end(0, 0.0)
            session.connection.break_off()
        session.heard_at = now
        session.connection = Connection(session, link, self._random)
        self._nursery.start_soon(self._serve, session.connection)
        return session.connection

    async def _serve(self, connection: Connection) -> None:
        session = connection.session
        while (message := await connection.to_server.receive()) is not None:
            if session.has_ended or not self.is_up or session.connection is not connection:
                return
            session.heard_at = trio.current_time()
            if isinstance(message, Ping):
                connection.to_client.put(message)
            else:
                number, request = message
                if request.kind == "close":
                    self.end(session)
                    return
                connection.to_client.put((number, await self._carry_out(connection, request)))

    async def _carry_out(self, connection: Connection, request: Request) -> object:
        """Return the answer, or kazoo's error."""
        session, memory, path = connection.session, connection.session.memory, request.path
        watch = request.watch

        def tell() -> None:
            connection.to_client.put(Changed(watch))

        on_change = tell if watch else None
        answer: object = None
        try:
            match request.kind:
                case "create":
                    answer = await memory.create(
                        path,
                        request.data,
                        is_ephemeral=request.is_ephemeral,
                        is_sequential=request.is_sequential,
                    )
                case "get":
                    data, _ = await memory.get(path, on_change)
                    return data, self._stat(path)
                case "children":
                    return await memory.children(path, on_change)
                case "set":
                    await memory.set(path, request.data, request.version)
                    answer = self._stat(path)
                case "delete":
                    await memory.delete(path, request.version)
        except api.SessionLostError:
            return kazoo.exceptions.SessionExpiredError()
        except api.ZooKeeperError as error:
            return _ERRORS[type(error)]()
        self.on_write(session, request)
        return answer

    def _stat(self, path: str) -> Stat:
        node = self.tree.find(path)
        return Stat(node.version, 0 if node.owner is None else self._numbers.get(node.owner, -1))


class _Result:
    """The object that kazoo returns at once for an answer that comes later."""

    def __init__(self) -> None:
        self._answer: object = None
        self._is_ready = False
        self._links: list[Callable[[_Result], None]] = []

    def set(self, answer: object) -> None:
        """Set the answer, unless there is one, and call the waiting links."""
        if not self._is_ready:
            self._answer, self._is_ready = answer, True
            for link in self._links:
                link(self)

    def rawlink(self, link: Callable[[_Result], None]) -> None:
        """See kazoo."""
        self._links.append(link)
        if self._is_ready:
            link(self)

    def get(self, *, block: bool) -> object:
        """See kazoo."""
        assert not block
        assert self._is_ready
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class SimulatedKazoo:
    """The part of a ``KazooClient`` that ``KazooSession`` uses.

    Its tasks are of the client's process.
    """

    def __init__(
        self, server: SimulatedZooKeeper, link: Link, process: Process, session_seconds: float
    ) -> None:
        self._server = server
        self._link = link
        self._process = process
        self._seconds = session_seconds
        self._number: int | None = None
        self._connection: Connection | None = None
        self._has_ended = False
        self._calls: dict[int, tuple[Request, _Result]] = {}
        """The calls without an answer, by number, in their order."""
        self._call_count = 0
        self._watches: dict[int, Callable[[object], None]] = {}
        self.listener: Callable[[str], None] = lambda state: None
        self.connected = trio.Event()
        process.on_kill.append(self._die)

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """Return the session while there is a connection."""
        return None if self._connection is None or self._number is None else (self._number, b"")

    # ---- The connection --------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, and again whenever the connection is lost, until the session has ended."""
        random = self._link.weather.random
        while not self._has_ended:
            try:
                connection = await self._connect()
            except trio.TooSlowError:
                await trio.sleep(RETRY_SECONDS_MAX * random.random())
                continue
            if connection is None:
                self._lose()
                return
            self._number = connection.session.number
            self._connection = connection
            for number, (request, _) in self._calls.items():
                connection.to_server.put((number, request))
            self.connected.set()
            self.listener(KazooState.CONNECTED)
            await self._exchange(connection)
            self._connection = None
            connection.break_off()
            if not self._has_ended:
                self._forget_all(kazoo.exceptions.ConnectionLoss())
                self.listener(KazooState.SUSPENDED)
                await trio.sleep(RETRY_SECONDS_MAX * random.random())

    async def _connect(self) -> Connection | None:
        """Connect to the server. Raises ``TooSlowError`` when it does not answer."""
        with trio.fail_after(self._seconds / 3):
            await trio.sleep(self._link.delay())
            await self._link.wait_whole()
            if not self._server.is_up:
                raise trio.TooSlowError
            found = self._server.accept(self._number, self._process.name, self._seconds, self._link)
            await trio.sleep(self._link.delay())
            return found

    async def _exchange(self, connection: Connection) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat, connection)
            while True:
                message = None
                with trio.move_on_after(self._seconds * 2 / 3):
                    message = await connection.to_client.receive()
                if message is None or self._has_ended:
                    break
                if isinstance(message, Changed):
                    if (watch := self._watches.pop(message.watch, None)) is not None:
                        watch(message)
                elif not isinstance(message, Ping):
                    number, answer = message
                    if isinstance(answer, Exception):
                        self._watches.pop(number, None)
                    request, result = self._calls.pop(number)
                    connection.session.read.add(request.path)
                    result.set(answer)
            nursery.cancel_scope.cancel()

    async def _beat(self, connection: Connection) -> None:
        while True:
            await trio.sleep(self._seconds / 3)
            connection.to_server.put(Ping())

    def _lose(self) -> None:
        """Lose the session: the server says that it has ended."""
        self._has_ended = True
        self._forget_all(kazoo.exceptions.SessionExpiredError())
        self.listener(KazooState.LOST)

    def _forget_all(self, error: Exception) -> None:
        calls, self._calls = self._calls, {}
        watches, self._watches = self._watches, {}
        for _, result in calls.values():
            result.set(error)
        for watch in watches.values():
            watch(None)

    def close(self) -> None:
        """End the session, if the server can be told."""
        if not self._has_ended:
            self._has_ended = True
            self._forget_all(kazoo.exceptions.ConnectionClosedError())
            if self._connection is not None:
                self._connection.to_server.put((0, Request("close", "/")))

    def _die(self) -> None:
        self._has_ended = True
        if self._connection is not None:
            self._connection.break_off()

    # ---- Calls -----------------------------------------------------------------------------------

    def create_async(self, path: str, data: bytes, *, ephemeral: bool, sequence: bool) -> _Result:
        """See kazoo."""
        return self._call(
            Request("create", path, data, is_ephemeral=ephemeral, is_sequential=sequence), None
        )

    def get_async(self, path: str, watch: Callable[[object], None] | None = None) -> _Result:
        """See kazoo."""
        return self._call(Request("get", path), watch)

    def get_children_async(self, path: str, watch: Callable[[object], None] | None) -> _Result:
        """See kazoo."""
        return self._call(Request("children", path), watch)

    def set_async(self, path: str, data: bytes, *, version: int) -> _Result:
        """See kazoo."""
        return self._call(Request("set", path, data, version), None)

    def delete_async(self, path: str, *, version: int) -> _Result:
        """See kazoo."""
        return self._call(Request("delete", path, version=version), None)

    def _call(self, request: Request, watch: Callable[[object], None] | None) -> _Result:
        result = _Result()
        if self._has_ended:
            result.set(kazoo.exceptions.ConnectionClosedError())
            return result
        self._call_count += 1
        if watch is not None:
            self._watches[self._call_count] = watch
            request = Request(request.kind, request.path, watch=self._call_count)
        self._calls[self._call_count] = request, result
        if self._connection is not None:
            self._connection.to_server.put((self._call_count, request))
        return result


@asynccontextmanager
async def open_simulated_session(
    server: SimulatedZooKeeper,
    link: Link,
    process: Process,
    nursery: trio.Nursery,
    *,
    session_seconds: float,
) -> AsyncIterator[KazooSession]:
    """Open a session as ``open_zookeeper`` does."""
    client = SimulatedKazoo(server, link, process, session_seconds)
    session = KazooSession(client, session_seconds, nursery)
    client.listener = session.on_state_in_thread
    nursery.start_soon(client.run)
    try:
        with trio.move_on_after(CONNECT_SECONDS_MAX):
            await client.connected.wait()
        if not client.connected.is_set():
            raise api.ConnectionLostError("ZooKeeper does not answer")
        yield session
    finally:
        session.end()
        client.close()
