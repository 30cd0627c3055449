"""The operations of WebHDFS on the files below one directory.

Owns: ``WebHdfs``, which turns blocking requests into awaits, knows which NameNode serves, follows
its redirects to DataNodes, and bounds how long what failed is repeated.

How it works: a NameNode answers everything but the bytes of files. For these it names a DataNode,
to which the request is sent again. Of two NameNodes one serves; the other one answers with
``StandbyException``, or not at all.

Invariants:
1. Each method makes one attempt. ``repeat`` makes further ones, and its caller sees that what is
   repeated has its effect once: a NameNode that was not heard may have done what it was asked.
2. Blocking calls run in threads, ``THREADS_MAX`` for reads and as many for the rest; a pause
   between two attempts holds no thread.
3. What is repeated ends ``retry_seconds_max`` and one attempt after it began at the latest, but
   not before each NameNode was asked. An attempt ends when a server was silent for too long: one
   that goes on sending bytes is waited for.
4. A call that is cancelled waits for the end of a request that changes files, so that none is done
   behind its caller's back, and for no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import trio

from segstore.tiers.api import Buffer
from segstore.tiers.hdfs.failures import (
    INVALID_JSON,
    REQUEST_ERRORS,
    HdfsFailure,
    HdfsFailureKind,
    HdfsRequestError,
    failure_of_answer,
    failure_of_error,
)
from segstore.tiers.hdfs.http import HttpAnswer, HttpRequests
from segstore.tiers.hdfs.lost_datanodes import LostDataNodes

T = TypeVar("T")

THREADS_MAX: Final = 16
API: Final = "/webhdfs/v1"
FILE_PERMISSION: Final = "600"
DIRECTORY_PERMISSION: Final = "700"
SAFE_IN_PATH: Final = "/!$.-_"
NONE: Final[Mapping[str, str | int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RepeatLimits:
    """Time limits of what is repeated."""

    retry_seconds_max: float = 30.0
    pause_seconds_min: float = 0.1
    pause_seconds_max: float = 5.0


class FileStatus(msgspec.Struct, rename="camel"):
    """The status of a file or directory at a NameNode.

    Of a file that is open for writing the length is what was closed before: bytes that a NameNode
    counts have been acknowledged by all DataNodes that wrote them.
    """

    type: str
    length: int
    path_suffix: str = ""
    modification_time: int = 0
    """Milliseconds since 1970, by the clock of the NameNode."""

    @property
    def is_directory(self) -> bool:
        """Return whether it is a directory."""
        return self.type == "DIRECTORY"


class _StatusBody(msgspec.Struct):
    status: FileStatus = msgspec.field(name="FileStatus")


class _Statuses(msgspec.Struct):
    each: list[FileStatus] = msgspec.field(name="FileStatus")


class _ListingBody(msgspec.Struct):
    statuses: _Statuses = msgspec.field(name="FileStatuses")


class _YesBody(msgspec.Struct):
    boolean: bool


class WebHdfs:
    """The files below ``root``. Paths are given relative to it; the empty one is the root's own.

    ``identity`` returns the parameters that say who asks; it is called for each request, in a
    thread, and may raise ``HdfsRequestError``.
    """

    def __init__(
        self,
        http: HttpRequests,
        addresses: Sequence[str],
        *,
        root: str,
        title: str,
        identity: Callable[[], dict[str, str]],
        random: Callable[[], float],
        replication: int | None = None,
        block_bytes: int | None = None,
        limits: RepeatLimits = RepeatLimits(),
    ) -> None:
        self._http = http
        self._addresses = list(addresses)
        self._root = root
        self.title = title
        self._identity = identity
        self._random = random
        self._limits = limits
        self._created: dict[str, str | int] = {"permission": FILE_PERMISSION, "overwrite": "false"}
        if replication is not None:
            self._created["replication"] = replication
        if block_bytes is not None:
            self._created["blocksize"] = block_bytes
        self._active = 0
        self._lost_datanodes = LostDataNodes()
        self._limiter = trio.CapacityLimiter(THREADS_MAX)
        self._read_limiter = trio.CapacityLimiter(THREADS_MAX)

    def with_limits(self, limits: RepeatLimits) -> WebHdfs:
        """Return the same files with other time limits."""
        other = copy(self)
        other._limits = limits
        return other

    def below(self, path: str) -> WebHdfs:
        """Return the files of a directory, over the same connections."""
        other = copy(self)
        other._root = self._full(path)
        return other

    def close(self) -> None:
        """Close the connections. Blocks shortly."""
        self._http.close()

    async def repeat(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make an attempt until it succeeds, cannot succeed, or was made for long enough.

        Raises ``HdfsRequestError``, which says ``what`` could not be done.
        """
        deadline = trio.current_time() + self._limits.retry_seconds_max
        pause = self._limits.pause_seconds_min
        count = 1
        while True:
            try:
                return await attempt()
            except HdfsRequestError as error:
                failure = error.failure
                # One NameNode that is slow to refuse must not use up the time of the others.
                is_late = trio.current_time() > deadline and count >= len(self._addresses)
                if is_late or not failure.is_worth_another_try:
                    times = "" if count == 1 else f" ({count} tries)"
                    raise HdfsRequestError(
                        f"tier 2 in {self.title} cannot {what}{times}: {failure.reason}", failure
                    ) from error
            await trio.sleep(pause * (0.5 + self._random() / 2))
            pause = min(2 * pause, self._limits.pause_seconds_max)
            count += 1

    # ---- What the NameNode does ------------------------------------------------------------------

    async def status(self, path: str) -> FileStatus | None:
        """Return what there is under a path; None if there is nothing."""
        try:
            answer = await self._ask("GET", "GETFILESTATUS", path)
        except HdfsRequestError as error:
            if error.failure.kind is HdfsFailureKind.MISSING:
                return None
            raise
        return _decode(answer, _StatusBody).status

    async def entries(self, path: str) -> list[FileStatus]:
        """Return what is in a directory; nothing when there is no such directory."""
        try:
            answer = await self._ask("GET", "LISTSTATUS", path)
        except HdfsRequestError as error:
            if error.failure.kind is HdfsFailureKind.MISSING:
                return []
            raise
        return _decode(answer, _ListingBody).statuses.each

    async def make_directory(self, path: str) -> None:
        """Make a directory, and those above it, unless they are there."""
        answer = await self._ask(
            "PUT",
            "MKDIRS",
            path,
            {"permission": DIRECTORY_PERMISSION},
            waits_when_cancelled=True,
        )
        if not _decode(answer, _YesBody).boolean:
            raise _failed(HdfsFailureKind.REFUSED, f"the directory {path} cannot be made")

    async def rename(self, path: str, new: str) -> bool:
        """Rename a file; return False when there is no such file, the other name is taken, or its
        directory is missing."""
        answer = await self._ask(
            "PUT", "RENAME", path, {"destination": self._full(new)}, waits_when_cancelled=True
        )
        return _decode(answer, _YesBody).boolean

    async def delete(self, path: str, *, waits_when_cancelled: bool = True) -> bool:
        """Delete a file or an empty directory; returns False when there is none.

        Raises ``HdfsRequestError`` with the kind ``EXISTS`` for a directory that is not empty.
        """
        answer = await self._ask(
            "DELETE",
            "DELETE",
            path,
            {"recursive": "false"},
            waits_when_cancelled=waits_when_cancelled,
        )
        return _decode(answer, _YesBody).boolean

    # ---- What DataNodes do -----------------------------------------------------------------------

    async def create(self, path: str, body: Sequence[Buffer]) -> None:
        """Make a file with these bytes, and the directories above it.

        A failure may leave the file with some of them.
        """
        await self._transfer("PUT", "CREATE", path, self._created, body=body, expected=201)

    async def append(self, path: str, body: Sequence[Buffer]) -> None:
        """Append bytes at the file's end, wherever that is. A failure may leave some of them."""
        await self._transfer("POST", "APPEND", path, body=body, expected=200)

    async def read(self, path: str, *, offset: int, length: int) -> bytes:
        """Read from an offset below the file's length; fewer bytes when it ends before."""
        return (
            await self._transfer(
                "GET",
                "OPEN",
                path,
                {"offset": offset, "length": length},
                expected=200,
                limiter=self._read_limiter,
            )
        ).body

    async def locate_writer(self, path: str) -> str:
        """Return the URL of the server that would make a file; no file is made."""
        answer = await self._ask("PUT", "CREATE", path, self._created)
        return _redirect_of(answer)

    async def look(self, url: str) -> HttpAnswer:
        """Send a GET request for another page to one of the servers."""
        return await self._send("GET", lambda: url)

    async def _transfer(
        self,
        method: str,
        op: str,
        path: str,
        parameters: Mapping[str, str | int] = NONE,
        *,
        expected: int,
        body: Sequence[Buffer] | None = None,
        limiter: trio.CapacityLimiter | None = None,
    ) -> HttpAnswer:
        """Ask the NameNode for a DataNode, and send it the request."""
        excluded = self._lost_datanodes.excluded()
        if excluded:
            parameters = {**parameters, "excludedatanodes": excluded}
        try:
            url = _redirect_of(await self._ask(method, op, path, parameters, limiter=limiter))
        except HdfsRequestError as error:
            if error.failure.kind is HdfsFailureKind.TRY_AGAIN:
                # No other DataNode has the bytes, or this NameNode has other addresses of them.
                self._lost_datanodes.clear()
            raise
        try:
            answer = await self._send(
                method,
                lambda: url,
                body,
                limiter=limiter,
                waits_when_cancelled=body is not None,
            )
        except HdfsRequestError:
            await self._lost_datanodes.add(url)
            raise
        self._lost_datanodes.remove(url)
        if answer.status != expected:
            raise _refused(answer)
        return answer

    async def _ask(
        self,
        method: str,
        op: str,
        path: str,
        parameters: Mapping[str, str | int] = NONE,
        *,
        limiter: trio.CapacityLimiter | None = None,
        waits_when_cancelled: bool = False,
    ) -> HttpAnswer:
        """Ask the NameNode that served last; after a failure the next one is asked."""
        asked = self._active

        def url() -> str:
            query = urlencode({"op": op, **self._identity(), **parameters})
            return f"{self._addresses[asked]}{API}{_quoted(self._full(path))}?{query}"

        serves = False
        try:
            answer = await self._send(
                method, url, limiter=limiter, waits_when_cancelled=waits_when_cancelled
            )
            serves = answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
            if answer.status not in (HTTPStatus.OK, HTTPStatus.TEMPORARY_REDIRECT):
                raise _refused(answer)
        except HdfsRequestError as error:
            # A refusal by an active NameNode is no reason to leave it, whatever it is.
            serves &= error.failure.kind is not HdfsFailureKind.STANDBY
            if not serves and self._active == asked:
                self._active = (asked + 1) % len(self._addresses)
            raise
        return answer

    async def _send(
        self,
        method: str,
        url: Callable[[], str],
        body: Sequence[Buffer] | None = None,
        *,
        limiter: trio.CapacityLimiter | None = None,
        waits_when_cancelled: bool = False,
    ) -> HttpAnswer:
        """Send a request. One that is not waited for when its caller is cancelled goes on in its
        thread."""
        try:
            return await trio.to_thread.run_sync(
                lambda: self._http.send(method, url(), body),
                limiter=limiter or self._limiter,
                abandon_on_cancel=not waits_when_cancelled,
            )
        except REQUEST_ERRORS as error:
            failure = failure_of_error(error)
            raise HdfsRequestError(failure.reason, failure) from error

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def _quoted(path: str) -> str:
    return quote(path, safe=SAFE_IN_PATH)


def _failed(kind: HdfsFailureKind, reason: str) -> HdfsRequestError:
    return HdfsRequestError(reason, HdfsFailure(kind, reason))


def _refused(answer: HttpAnswer) -> HdfsRequestError:
    failure = failure_of_answer(answer.status, answer.body)
    return HdfsRequestError(failure.reason, failure)


def _redirect_of(answer: HttpAnswer) -> str:
    if answer.location is None:
        raise _failed(HdfsFailureKind.REFUSED, "the NameNode names no DataNode: is this WebHDFS?")
    return answer.location


def _decode(answer: HttpAnswer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except INVALID_JSON as error:
        raise _failed(
            HdfsFailureKind.REFUSED, f"the answer is not WebHDFS's: {error}: is this a NameNode?"
        ) from error
