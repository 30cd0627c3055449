"""An HDFS in this process, for the faults that a real one cannot be made to have.

Owns: ``FakeHdfs``: NameNodes and a DataNode that speak WebHDFS on ports of 127.0.0.1, on files in
memory, and ``RequestFault``, what happens to one request instead of what should.

What real servers do is proven by ``compat-tests/hdfs``. Where this module is in doubt it does less:
it knows the operations that the tier uses, and no others.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

HOST = "127.0.0.1"
LOST_HOST = "127.2"
LOST_ADDRESS = "127.0.0.2"
"""The address that a resolver makes of the name ``LOST_HOST``, on every machine."""
API = "/webhdfs/v1"
STANDBY = "STANDBY"
"""The kind under which a request to a NameNode on standby is counted."""
CONF = "CONF"
"""The operation of a request for a DataNode's setting, in plans and counts."""
RECEIVE_BUFFER_BYTES = 64 * 1024
PART_BYTES = 4 << 20
BYTES_OPERATIONS = frozenset({"CREATE", "APPEND", "OPEN"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """An exception that a server answers with."""

    exception: str
    message: str = ""
    status: int = 403
    package: str = "java.io"


@dataclass(frozen=True, slots=True)
class RequestFault:
    """The fault of one request. By default it is done, and its answer is lost."""

    bytes_done: int | None = None
    """Number of bytes of a body that arrive; all when None."""
    refusal: Refusal | None = None
    """The answer of a server that does nothing else; None for the real one."""
    redirect: str | None = None
    """The server that the NameNode names instead of a DataNode, even one that is excluded."""
    first: Callable[[], None] | None = None
    """An action of another client just before."""
    is_answered: bool = False
    """True if the answer comes all the same."""
    closes_after: int = 0
    """Number of looks after which an append's bytes count, and its file can be opened again."""


@dataclass(slots=True)
class FakeHdfs:
    """Files in memory, and the servers that offer them. Tests may look and change."""

    files: dict[str, bytearray] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {"/"})
    being_written: set[str] = field(default_factory=set)
    """Files that another client has open for writing."""
    unreadable: set[str] = field(default_factory=set)
    """Files whose last block cannot be read, until a client opens them for appending."""
    active: int = 0
    """Index of the NameNode that serves."""
    sync_on_close: str | None = "true"
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Operations with bytes that reached the DataNode, and all others, with the path."""
    queries: list[dict[str, str]] = field(default_factory=list)
    namenodes: list[str] = field(default_factory=list)
    datanode: str = ""
    scheme: str = "http"
    lost_datanode: str = ""
    """Name of a DataNode that the NameNode names first, and that does not work. It has to be on
    ``LOST_HOST``."""
    pause_seconds: float = 0.0
    """Pause, in seconds, of a DataNode before it reads each ``PART_BYTES`` of a body."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    _faults: dict[str, list[RequestFault]] = field(default_factory=dict)
    _clock: int = 0
    _unclosed: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """Files that are still open: what is added to them, and after how many looks."""

    def plan(self, operation: str, *faults: RequestFault) -> None:
        """Plan these faults for the next requests of an operation, one after the other. A fault
        with a redirect is met at the NameNode, others where the operation is done."""
        self._faults.setdefault(operation, []).extend(faults)

    def forget_faults(self) -> None:
        """Forget all planned faults."""
        self._faults.clear()

    def count(self, operation: str) -> int:
        """Count the requests of an operation that were met."""
        return sum(name == operation for name, _ in self.requests)

    def next_fault(self, operation: str, *, redirects: bool) -> RequestFault | None:
        """Remove and return the fault that is planned for the next request of an operation."""
        planned = self._faults.get(operation, [])
        if planned and (planned[0].redirect is not None) == redirects:
            return planned.pop(0)
        return None

    def choose_datanode(self, excluded: str) -> str | Refusal:
        """Return the DataNode that a NameNode names, which knows DataNodes by address alone."""
        addresses = set(filter(None, excluded.split(",")))
        if not addresses <= {HOST, LOST_ADDRESS}:
            return Refusal("NullPointerException", status=500, package="java.lang")
        if self.lost_datanode and LOST_ADDRESS not in addresses:
            return self.lost_datanode
        if HOST in addresses:
            return Refusal("IOException", "No active nodes contain this block")
        return self.datanode

    # ---- Operations on the files -----------------------------------------------------------------

    def status(self, path: str, *, named: bool = False) -> dict[str, Any] | None:
        """Return a file's or a directory's status, as WebHDFS has it."""
        self._clock += 1
        if path in self._unclosed:
            added, looks = self._unclosed.pop(path)
            if looks > 0:
                self._unclosed[path] = added, looks - 1
            else:
                self.files[path] += added
        suffix = path.rpartition("/")[2] if named else ""
        common = {"pathSuffix": suffix, "modificationTime": self._clock}
        if path in self.directories:
            return {**common, "type": "DIRECTORY", "length": 0}
        if path in self.files:
            return {**common, "type": "FILE", "length": len(self.files[path])}
        return None

    def entries(self, path: str) -> list[str]:
        """Return the paths of what is in a directory."""
        everything = [*self.files, *self.directories]
        return sorted(each for each in everything if each != "/" and _parent(each) == path)

    def make_directories(self, path: str) -> None:
        """Make a directory and those above it."""
        while path != "/":
            self.directories.add(path)
            path = _parent(path)

    def create(self, path: str, body: bytes) -> Refusal | None:
        """Make a file."""
        if path in self.files:
            return Refusal("FileAlreadyExistsException", f"{path} already exists")
        self.make_directories(_parent(path))
        self.files[path] = bytearray(body)
        return None

    def append(self, path: str, body: bytes, *, closes_after: int = 0) -> Refusal | None:
        """Append to a file, which is closed after so many looks at it."""
        if path not in self.files:
            return Refusal("FileNotFoundException", path, 404)
        if path in self.being_written or path in self._unclosed:
            return Refusal("AlreadyBeingCreatedException", f"{path} is being written")
        self.unreadable.discard(path)
        if closes_after:
            self._unclosed[path] = body, closes_after
        else:
            self.files[path] += body
        return None

    def rename(self, path: str, new: str) -> bool:
        """Rename a file."""
        if path not in self.files or new in self.files or _parent(new) not in self.directories:
            return False
        self.files[new] = self.files.pop(path)
        return True

    def delete(self, path: str) -> bool | Refusal:
        """Delete a file or an empty directory."""
        if self.files.pop(path, None) is not None:
            return True
        if path not in self.directories:
            return False
        if self.entries(path):
            return Refusal("PathIsNotEmptyDirectoryException", f"{path} is non empty")
        self.directories.discard(path)
        return True


@contextmanager
def fake_hdfs(namenodes: int = 1, *, tls: ssl.SSLContext | None = None) -> Iterator[FakeHdfs]:
    """Run one for the block; with ``tls`` all its servers speak that."""
    hdfs = FakeHdfs(scheme="http" if tls is None else "https")
    servers = [_server(hdfs, _DataNode, 0)]
    servers += [_server(hdfs, _NameNode, number) for number in range(namenodes)]
    if tls is not None:
        for each in servers:
            each.socket = tls.wrap_socket(each.socket, server_side=True)
    hdfs.datanode, *hdfs.namenodes = (f"{HOST}:{each.server_port}" for each in servers)
    threads = [
        threading.Thread(target=each.serve_forever, kwargs={"poll_interval": 0.02})
        for each in servers
    ]
    for thread in threads:
        thread.start()
    try:
        yield hdfs
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


def dead_address(host: str = HOST) -> str:
    """Return an address where no process listens."""
    with socket.socket() as unused:
        unused.bind((host, 0))
        return f"{host}:{unused.getsockname()[1]}"


@contextmanager
def frozen_address() -> Iterator[str]:
    """Yield an address of ``LOST_HOST`` where connections are made, and no server answers."""
    with socket.socket() as frozen:
        frozen.bind((LOST_HOST, 0))
        frozen.listen()
        yield f"{LOST_HOST}:{frozen.getsockname()[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10.0
    wbufsize = 1 << 16
    hdfs: ClassVar[FakeHdfs]
    number: ClassVar[int]

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do nothing: this log is not needed."""

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        path = unquote(url.path).removeprefix(API).rstrip("/") or "/"
        self.meet(query.get("op", ""), path, query)

    def meet(self, operation: str, path: str, query: dict[str, str]) -> None:
        raise NotImplementedError

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def answer_json(self, value: object, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def refuse(self, refusal: Refusal) -> None:
        remote = {
            "exception": refusal.exception,
            "javaClassName": f"{refusal.package}.{refusal.exception}",
            "message": refusal.message,
        }
        self.answer_json({"RemoteException": remote}, refusal.status)

    def cut(self) -> None:
        """End the connection without an answer."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class _NameNode(_Handler):
    def meet(self, operation: str, path: str, query: dict[str, str]) -> None:
        hdfs = self.hdfs
        with hdfs.lock:
            if self.number != hdfs.active:
                hdfs.requests.append((STANDBY, path))
                self.refuse(Refusal("StandbyException", "Operation category READ is not supported"))
                return
            hdfs.queries.append(query)
            if operation in BYTES_OPERATIONS:
                fault = hdfs.next_fault(operation, redirects=True)
                if operation != "CREATE" and path not in hdfs.files:
                    self.refuse(Refusal("FileNotFoundException", path, 404))
                    return
                server = hdfs.choose_datanode(query.get("excludedatanodes", ""))
                if fault is not None and fault.redirect is not None:
                    server = fault.redirect
                if isinstance(server, Refusal):
                    self.refuse(server)
                    return
                location = f"{hdfs.scheme}://{server}{API}{quote(path)}?{urlsplit(self.path).query}"
                self.answer(307, Location=location)
                return
            hdfs.requests.append((operation, path))
            fault = hdfs.next_fault(operation, redirects=False)
            if fault is not None and fault.first is not None:
                fault.first()
            if fault is not None and fault.refusal is not None:
                self.refuse(fault.refusal)
                return
            done = self._do(operation, path, query)
            if fault is not None and not fault.is_answered:
                self.cut()
            elif isinstance(done, Refusal):
                self.refuse(done)
            else:
                self.answer_json(done)

    def _do(self, operation: str, path: str, query: dict[str, str]) -> Refusal | dict[str, Any]:
        hdfs = self.hdfs
        missing = Refusal("FileNotFoundException", f"File does not exist: {path}", 404)
        match operation:
            case "GETFILESTATUS":
                status = hdfs.status(path)
                return missing if status is None else {"FileStatus": status}
            case "LISTSTATUS":
                if path not in hdfs.directories:
                    return missing
                found = [hdfs.status(each, named=True) for each in hdfs.entries(path)]
                return {"FileStatuses": {"FileStatus": found}}
            case "MKDIRS":
                hdfs.make_directories(path)
                return {"boolean": True}
            case "RENAME":
                return {"boolean": hdfs.rename(path, query["destination"])}
            case "DELETE":
                done = hdfs.delete(path)
                return done if isinstance(done, Refusal) else {"boolean": done}
            case _:
                return Refusal("UnsupportedOperationException", operation, 400, "java.lang")


class _DataNode(_Handler):
    def meet(self, operation: str, path: str, query: dict[str, str]) -> None:
        hdfs = self.hdfs
        self.close_connection = True
        if operation in ("CREATE", "APPEND"):
            # The real server does so too, asked or not.
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b""
        missing = int(self.headers.get("Content-Length", "0"))
        while missing > 0:
            time.sleep(hdfs.pause_seconds)
            part = self.rfile.read(min(missing, PART_BYTES))
            if not part:
                break
            body += part
            missing -= len(part)
        with hdfs.lock:
            operation = operation or CONF
            hdfs.requests.append((operation, path))
            fault = hdfs.next_fault(operation, redirects=False)
            if fault is not None:
                if fault.first is not None:
                    fault.first()
                if fault.refusal is not None:
                    self.refuse(fault.refusal)
                    return
                body = body[: fault.bytes_done]
            if operation == CONF:
                self._tell_setting(fault)
                return
            if operation == "OPEN":
                self._read(path, query, fault)
                return
            if operation == "CREATE":
                done = hdfs.create(path, body)
            else:
                looks = 0 if fault is None else fault.closes_after
                done = hdfs.append(path, body, closes_after=looks)
            if fault is not None and not fault.is_answered:
                self.cut()
            elif done is not None:
                self.refuse(done)
            else:
                self.answer(201 if operation == "CREATE" else 200)

    def _read(self, path: str, query: dict[str, str], fault: RequestFault | None) -> None:
        content = self.hdfs.files.get(path)
        offset, length = int(query["offset"]), int(query["length"])
        if content is None:
            self.refuse(Refusal("FileNotFoundException", path, 404))
        elif path in self.hdfs.unreadable:
            self.refuse(Refusal("IOException", "Cannot obtain block length for LocatedBlock"))
        elif offset > len(content):
            self.refuse(Refusal("EOFException", "Cannot seek after EOF"))
        elif fault is not None and fault.bytes_done is None:
            self.cut()
        else:
            done = None if fault is None else fault.bytes_done
            self.answer(200, bytes(content[offset : offset + length])[:done])

    def _tell_setting(self, fault: RequestFault | None) -> None:
        if fault is not None and not fault.is_answered:
            self.cut()
        elif self.hdfs.sync_on_close is None:
            self.answer(404)
        else:
            key = "dfs.datanode.synconclose"
            self.answer_json({"property": {"key": key, "value": self.hdfs.sync_on_close}})


def _server(hdfs: FakeHdfs, handler: type[_Handler], number: int) -> ThreadingHTTPServer:
    bound = type(handler.__name__, (handler,), {"hdfs": hdfs, "number": number})
    server = ThreadingHTTPServer((HOST, 0), bound)
    server.daemon_threads = True
    # Bytes that are not read yet stay with their sender.
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return server


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
