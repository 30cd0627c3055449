"""Opens tier 2 in HDFS, and checks within seconds whether it can be used.

Owns: the HTTP client's configuration, the user's identity, the checks at the start, and the
sentence for users about each failure. The first start of a store tries each operation that is
needed later, on files that are not chunks. Later starts only check that HDFS answers.

Invariants:
1. When a first start is killed halfway, later starts succeed. Held by
   ``test_a_first_start_that_is_stopped_halfway_keeps_no_store_out``.
2. When a DataNode says that it does not sync closed files, the start is refused, unless the
   settings allow it. Held by ``test_datanodes_that_do_not_sync_are_refused``.
3. When the DataNode cannot be asked for this setting, the start is refused. Held by
   ``test_a_look_at_the_sync_setting_that_fails_lets_no_store_start``.
4. When a DataNode answers without the setting, the start logs a warning and continues. Held by
   ``test_a_datanode_that_does_not_tell_whether_it_syncs_is_a_warning``.
"""

from __future__ import annotations

import getpass
import os
import random
import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog

from segstore.errors import StorageConfigurationError, StorageError, StorageUnreachableError
from segstore.tiers.hdfs.failures import (
    INVALID_JSON,
    HdfsFailure,
    HdfsFailureKind,
    HdfsRequestError,
    failure_of_answer,
)
from segstore.tiers.hdfs.http import HttpRequests, PooledRequests
from segstore.tiers.hdfs.location import HdfsLocation
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.hdfs.storage import (
    UNFINISHED_DIRECTORY,
    HdfsChunkStorage,
    file_path,
    remove_old_unfinished,
    remove_unfinished,
)
from segstore.tiers.hdfs.webhdfs import THREADS_MAX, RepeatLimits, WebHdfs

LIMITS: Final = RepeatLimits()
START_LIMITS: Final = RepeatLimits(retry_seconds_max=5.0, pause_seconds_max=1.0)
OLD_UNFINISHED_SECONDS: Final = 3600.0
SYNC_SETTING: Final = "dfs.datanode.synconclose"
USER_VARIABLE: Final = "HADOOP_USER_NAME"
PROBE: Final = "segstore-probe"

logger = structlog.get_logger(__name__)


class Identity:
    """The identity of the client: a user's name or a delegation token. May be used from any
    thread."""

    def __init__(
        self, settings: HdfsSettings, *, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._token_file = settings.token_file
        self._user = settings.user or environment.get(USER_VARIABLE) or ""
        self._known: tuple[tuple[int, int], str] | None = None

    def __call__(self) -> dict[str, str]:
        """Return the request parameters that identify the user. Raises ``HdfsRequestError`` if
        there is neither a user's name nor a token."""
        if self._token_file is not None:
            return {"delegation": self._token(self._token_file)}
        try:
            return {"user.name": self._user or getpass.getuser()}
        except (KeyError, OSError) as error:
            raise _unknown("the system has no name for this process's user") from error

    def _token(self, path: str) -> str:
        try:
            found = os.stat(path)
            version = (found.st_ino, found.st_mtime_ns)
            known = self._known
            if known is None or known[0] != version:
                with open(path, encoding="ascii") as file:
                    known = self._known = version, file.read().strip()
        except UnicodeDecodeError as error:
            raise _unknown(
                f"token_file {path} is no text: it has to have a delegation token as a URL has it"
            ) from error
        except OSError as error:
            raise _unknown(f"token_file cannot be read: {error}") from error
        if not known[1]:
            raise _unknown(f"token_file {path} is empty")
        return known[1]


def _unknown(reason: str) -> HdfsRequestError:
    return HdfsRequestError(reason, HdfsFailure(HdfsFailureKind.CREDENTIALS, reason))


class _Property(msgspec.Struct):
    key: str
    value: str | None


class _PropertyBody(msgspec.Struct):
    property: _Property


class OpenedHdfs:
    """A directory in HDFS. Whether it belongs to this store is not known yet."""

    def __init__(self, hdfs: WebHdfs, location: HdfsLocation, settings: HdfsSettings) -> None:
        self.storage = HdfsChunkStorage(hdfs, random_bytes=os.urandom)
        self._trial = hdfs.with_limits(START_LIMITS)
        self._location = location
        self._settings = settings

    def close(self) -> None:
        """Close the connections. Blocks shortly."""
        self.storage.close()

    async def look(self) -> None:
        """Check that HDFS answers. Raises ``StorageError`` with a sentence for users."""
        try:
            await self._trial.repeat("look up its directory", lambda: self._trial.status(""))
        except HdfsRequestError as error:
            raise self._explained(error.failure) from error

    async def open(self) -> Callable[[Callable[[], int]], HdfsChunkStorage]:
        """Return the function that returns the chunk storage of an owner. Call this when the
        directory is known to belong to this store. Raises ``StorageError`` with a sentence for
        users."""
        await self._check_sync()
        try:
            removed = await remove_old_unfinished(
                self._trial, older_than_seconds=OLD_UNFINISHED_SECONDS
            )
            if removed:
                logger.info("removed unfinished chunks", tier2=str(self._location), count=removed)
        except HdfsRequestError as error:
            logger.warning("cannot look for unfinished chunks", error=str(error))
        return lambda _: self.storage

    async def try_everything(self) -> None:
        """Check that a new store can use the directory. Raises ``StorageError`` with a sentence for
        users."""
        try:
            await self._trial.repeat("make its directory", lambda: self._trial.make_directory(""))
            await self._try_everything(f"{PROBE}-{os.urandom(8).hex()}")
        except HdfsRequestError as error:
            raise self._explained(error.failure) from error

    async def _try_everything(self, name: str) -> None:
        """Create, append to, list, read and delete a chunk, in a directory in which no store looks
        for chunks."""
        hdfs = self._trial.below(UNFINISHED_DIRECTORY)
        storage = HdfsChunkStorage(hdfs, random_bytes=os.urandom, unfinished="")
        first, second = b"created", b", appended"
        try:
            await storage.write(name, offset=0, data=[first])
            await storage.write(name, offset=len(first), data=[second])
            found = [(each.name, each.length) for each in await storage.list_chunks(name)]
            read = await storage.read(name, offset=0, length=len(first + second))
            await storage.delete(name)
        except BaseException:
            await remove_unfinished(hdfs, file_path(name))
            raise
        if found != [(name, len(read))] or read != first + second:
            raise StorageConfigurationError(
                f"tier 2 in {self._location} returns other bytes than were written"
            )

    async def _check_sync(self) -> None:
        """Raise ``StorageConfigurationError`` if a DataNode acknowledges bytes that are only in its
        memory."""
        try:
            address, value = await self._trial.repeat(
                "find out whether DataNodes sync what they close", self._sync_setting
            )
        except HdfsRequestError as error:
            if self._settings.requires_sync:
                raise self._explained(error.failure) from error
            logger.warning(str(error))
            return
        if value is None:
            logger.warning(
                f"{address} does not tell whether it syncs what it closes: see that"
                f" {SYNC_SETTING} is true on all DataNodes",
                tier2=str(self._location),
            )
            return
        if value.strip().lower() == "true":  # as Hadoop reads it
            return
        sentence = (
            f"tier 2 in {self._location}: DataNode {address} has {SYNC_SETTING} = {value}, so a"
            " power cut can lose history that it acknowledged: set it to true in hdfs-site.xml of"
            " all DataNodes and restart them"
        )
        if self._settings.requires_sync:
            raise StorageConfigurationError(
                f"{sentence}; requires_sync = false of the settings [segment_store.hdfs] takes the"
                " risk"
            )
        logger.warning(sentence)

    async def _sync_setting(self) -> tuple[str, str | None]:
        """Ask the DataNode that would write the next file. Return its address and the setting, None
        if the answer does not have it."""
        url = urlsplit(await self._trial.locate_writer(PROBE))
        address = f"{url.scheme}://{url.netloc}"
        answer = await self._trial.look(f"{address}/conf?name={SYNC_SETTING}")
        if answer.status != HTTPStatus.OK:
            failure = failure_of_answer(answer.status, answer.body)
            if failure.is_worth_another_try:
                raise HdfsRequestError(failure.reason, failure)
            return address, None
        try:
            return address, msgspec.json.decode(answer.body, type=_PropertyBody).property.value
        except INVALID_JSON:
            return address, None

    def _explained(self, failure: HdfsFailure) -> StorageError:
        where = f"tier 2 in {self._location}"
        reason = failure.reason
        match failure.kind:
            case HdfsFailureKind.UNREACHABLE | HdfsFailureKind.TRY_AGAIN:
                return StorageUnreachableError(
                    f"{where}: HDFS cannot be reached or does not work: {reason}; the location has"
                    " the HTTP address of each NameNode (dfs.namenode.http-address), and the"
                    " DataNodes' host names have to resolve here"
                )
            case HdfsFailureKind.STANDBY:
                return StorageUnreachableError(
                    f"{where}: no NameNode that is named there is active ({reason}); name all of"
                    " them: webhdfs://HOST:PORT,HOST:PORT/PATH"
                )
            case HdfsFailureKind.CREDENTIALS:
                return StorageConfigurationError(
                    f"{where}: HDFS does not know who asks ({reason}); give a user's name or a"
                    " file with a delegation token as user or token_file of the settings"
                    " [segment_store.hdfs]"
                )
            case HdfsFailureKind.FORBIDDEN:
                return StorageConfigurationError(
                    f"{where}: the user may not read and write there ({reason}); make the"
                    " directory theirs: hdfs dfs -mkdir -p, then hdfs dfs -chown"
                )
            case HdfsFailureKind.FULL:
                return StorageConfigurationError(f"{where}: its quota allows no more: {reason}")
            case _:
                return StorageConfigurationError(f"{where} cannot be used: {reason}")


def connect(
    location: HdfsLocation,
    settings: HdfsSettings,
    *,
    http: HttpRequests | None = None,
    limits: RepeatLimits = LIMITS,
    random: Callable[[], float] = random.random,
) -> WebHdfs:
    """Return the client of a location, without any request. Raises ``StorageConfigurationError`` if
    the file of certificates cannot be read."""
    if settings.ca_file is not None:
        try:
            ssl.create_default_context(cafile=settings.ca_file)
        except OSError as error:
            raise StorageConfigurationError(
                f"tier 2 in {location}: ca_file {settings.ca_file} cannot be read: {error}"
            ) from error
    return WebHdfs(
        http or PooledRequests(connections_max=2 * THREADS_MAX, ca_file=settings.ca_file),
        location.addresses,
        root=location.path,
        title=str(location),
        identity=Identity(settings),
        random=random,
        replication=settings.replication,
        block_bytes=settings.block_bytes,
        limits=limits,
    )


async def open_hdfs(location: HdfsLocation, settings: HdfsSettings) -> OpenedHdfs:
    """Open a directory. Raises ``StorageConfigurationError`` or ``StorageUnreachableError`` with a
    sentence for users."""
    opened = OpenedHdfs(connect(location, settings), location, settings)
    try:
        await opened.look()
    except BaseException:
        opened.close()
        raise
    return opened
