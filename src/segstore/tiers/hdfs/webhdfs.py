"""The operations of WebHDFS on the files below one directory.

Owns: ``WebHdfs``, which runs blocking requests in threads, finds the active NameNode, follows its
redirects to DataNodes, and limits how long failed requests are repeated. There are ``THREADS_MAX``
threads for reads and as many for the rest; a pause between two attempts needs no thread.

A NameNode answers all requests except those that transfer the bytes of files. For these it names a
DataNode, to which the request is sent again. Of two NameNodes one is active; the other one answers
with ``StandbyException``, or not at all. A method makes one attempt; ``repeat`` makes several. A
failed request may have been executed, so the function that is given to ``repeat`` must check for
that.

Invariants:
1. When a request cannot succeed, it is not repeated. Held by
   ``test_what_cannot_succeed_is_not_repeated``.
2. When the time for attempts is over, each NameNode is asked before the call fails. Held by
   ``test_each_namenode_is_asked_however_long_one_takes``.
3. When a server sends nothing for too long, the attempt fails. Held by
   ``test_a_datanode_that_stands_still_too_long_within_a_body_is_given_up``.
4. When a call that changes nothing is cancelled, it returns at once. Held by
   ``test_a_call_that_changes_nothing_is_cancelled_at_once``.
5. When a call that changes files is cancelled, it returns after the end of the request that is
   under way. Held by ``test_a_silent_namenode_delays_the_end_of_a_cancelled_write_by_one_request``.
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
    HdfsFullError,
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
    """Time limits of repeated attempts, in seconds."""

    retry_seconds_max: float = 30.0
    pause_seconds_min: float = 0.1
    pause_seconds_max: float = 5.0


class FileStatus(msgspec.Struct, rename="camel"):
    """The status of a file or directory at a NameNode.

    If the file is open for writing, ``length`` is its length when it was closed last. All DataNodes
    that wrote these bytes have acknowledged them.
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
    """The files below ``root``. Paths are relative to it; the empty path is the root itself.

    ``identity`` returns the request parameters that identify the user. It is called for each
    request, in a thread, and may raise ``HdfsRequestError``.
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
        """Return an object for the same files with other time limits."""
        other = copy(self)
        other._limits = limits
        return other

    def below(self, path: str) -> WebHdfs:
        """Return an object for the files of a directory, with the same connections."""
        other = copy(self)
        other._root = self._full(path)
        return other

    def close(self) -> None:
        """Close the connections. Blocks shortly."""
        self._http.close()

    async def repeat(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat an attempt until it succeeds, until an error that another one cannot help, or
        until ``retry_seconds_max`` have passed.

        Raises ``HdfsRequestError``; its message says that ``what`` failed.
        """
        deadline = trio.current_time() + self._limits.retry_seconds_max
        pause = self._limits.pause_seconds_min
        count = 1
        while True:
            try:
                return await attempt()
            except HdfsRequestError as error:
                failure = error.failure
                # A NameNode that refuses slowly must not use up the time for the others.
                is_late = trio.current_time() > deadline and count >= len(self._addresses)
                if is_late or not failure.is_worth_another_try:
                    times = "" if count == 1 else f" ({count} tries)"
                    sentence = f"tier 2 in {self.title} cannot {what}{times}: {failure.reason}"
                    if failure.kind is HdfsFailureKind.FULL:
                        reason = f"tier 2 in {self.title} is full: {failure.reason}"
                        raise HdfsFullError(sentence, failure, reason) from error
                    raise HdfsRequestError(sentence, failure) from error
            await trio.sleep(pause * (0.5 + self._random() / 2))
            pause = min(2 * pause, self._limits.pause_seconds_max)
            count += 1

    # ---- What the NameNode does ------------------------------------------------------------------

    async def status(self, path: str) -> FileStatus | None:
        """Return the status of a file or directory; None if there is none."""
        try:
            answer = await self._ask("GET", "GETFILESTATUS", path)
        except HdfsRequestError as error:
            if error.failure.kind is HdfsFailureKind.MISSING:
                return None
            raise
        return _decode(answer, _StatusBody).status

    async def entries(self, path: str) -> list[FileStatus]:
        """Return the statuses of a directory's entries; an empty list if there is no such
        directory."""
        try:
            answer = await self._ask("GET", "LISTSTATUS", path)
        except HdfsRequestError as error:
            if error.failure.kind is HdfsFailureKind.MISSING:
                return []
            raise
        return _decode(answer, _ListingBody).statuses.each

    async def make_directory(self, path: str) -> None:
        """Make a directory and those above it, if they do not exist."""
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
        """Rename a file. Return False if it does not exist, if the new name exists, or if the new
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

        After a failure the file may exist with a part of the bytes.
        """
        await self._transfer("PUT", "CREATE", path, self._created, body=body, expected=201)

    async def append(self, path: str, body: Sequence[Buffer]) -> None:
        """Append bytes at the file's end. After a failure a part of them may have been appended."""
        await self._transfer("POST", "APPEND", path, body=body, expected=200)

    async def read(self, path: str, *, offset: int, length: int) -> bytes:
        """Read from an offset below the file's length. The result has fewer bytes if the file ends
        before."""
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
        """Return the URL of the DataNode that would make a file. No file is made."""
        answer = await self._ask("PUT", "CREATE", path, self._created)
        return _redirect_of(answer)

    async def look(self, url: str) -> HttpAnswer:
        """Send a GET request to a URL, such as a page of a DataNode."""
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
                # No other DataNode has the bytes, or the NameNode knows the DataNodes by other
                # addresses.
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
        """Send a request to the NameNode that answered last. After a failure the next request goes
        to another one."""
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
            # A NameNode that refuses a request, but not because it is on standby, stays in use.
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
        """Send a request in a thread. Without ``waits_when_cancelled`` a cancellation returns at
        once, and the request continues in its thread."""
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
