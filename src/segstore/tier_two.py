"""Which storage a process uses as tier 2.

Owns: the choice by configuration, and the note in the data directory that holds a store to it;
docs/formats/data-directory.md describes the note.

Invariants:
1. The data directory's log and tier 2 belong together: a store whose chunks are in S3 is not
   started on anything else, nor one that has chunks in a directory on S3.
2. The note is written whole and durable before anything is put into S3.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from pravega_wire.names import container_of
from segstore.config import SegmentStoreConfig
from segstore.data_directory import DataDirectory
from segstore.descriptors import descriptor_limit, share_out
from segstore.errors import StorageConfigurationError
from segstore.storage.older_layout import Belongs
from segstore.tiers.api import ChunkStorage, DurableDataLog, DurableDataLogFactory
from segstore.tiers.doubtful_files import DoubtNotes
from segstore.tiers.filesystem import FilesystemChunkStorage
from segstore.tiers.s3 import S3Location, S3LocationError

NOTE_FILE = "tier-2.toml"
DOUBTS_FILE = "tier-2-doubts.txt"

StorageOfOwner = Callable[[Callable[[], int]], ChunkStorage]
"""Gives the chunks to an owner, who knows the epoch it was given by then."""


def belongs_to(container_id: int, container_count: int) -> Belongs:
    """Tells which segments are a container's, by the names that tier 2 knows them by."""

    def belongs(storage_name: str) -> bool:
        name, mark, _ = storage_name.rpartition(".S-")
        return bool(mark) and container_of(name, container_count) == container_id

    return belongs


@dataclass(slots=True)
class EpochNotingLogs:
    """Opens logs with another factory, and notes under which epoch.

    ``check_log`` is told under which epoch a log was opened last, before it is opened again.
    """

    logs: DurableDataLogFactory
    epoch: int = 0
    check_log: Callable[[int], Awaitable[None]] | None = None

    def last_epoch(self, container_id: int) -> int:
        """See ``DurableDataLogFactory``."""
        return self.logs.last_epoch(container_id)

    async def open_log(self, container_id: int) -> DurableDataLog:
        """Open the log; see ``DurableDataLogFactory``."""
        if self.check_log is not None:
            await self.check_log(self.last_epoch(container_id))
        log = await self.logs.open_log(container_id)
        self.epoch = log.epoch
        return log

    def epoch_now(self) -> int:
        """The epoch of the log that was opened last."""
        return self.epoch


@asynccontextmanager
async def open_storage(
    config: SegmentStoreConfig, directory: DataDirectory, *, given: ChunkStorage | None = None
) -> AsyncIterator[StorageOfOwner]:
    """Open tier 2 as configured, for the block, unless it is ``given``.

    Raises ``StorageConfigurationError`` or ``StorageUnreachableError`` with a sentence for users.
    """
    if given is not None:
        yield lambda _: given
        return
    note = directory.path / NOTE_FILE
    noted = await trio.to_thread.run_sync(_read_note, note)
    if config.tier2 is None:
        if noted is not None:
            raise StorageConfigurationError(
                f"data directory {directory.path} has its tier 2 in {noted[0]}: start with"
                f" --tier2 {noted[0]}"
            )
        path = config.storage_dir or directory.storage_path
        path.mkdir(parents=True, exist_ok=True)
        storage = FilesystemChunkStorage(
            path,
            doubts=DoubtNotes(directory.path / DOUBTS_FILE),
            kept_files_max=share_out(descriptor_limit()).kept_files,
        )
        try:
            yield lambda _: storage
        finally:
            storage.close()
        return
    try:
        location = S3Location.parse(config.tier2)
    except S3LocationError as error:
        raise StorageConfigurationError(f"--tier2 {error}") from error
    if noted is None:
        _refuse_directory(config, directory)
    elif noted[0] != str(location):
        raise StorageConfigurationError(
            f"data directory {directory.path} has its tier 2 in {noted[0]}, not in {location}"
        )

    async def new_store_id() -> str:
        _, store_id = await trio.to_thread.run_sync(_write_note, note, str(location))
        return store_id

    # boto3 takes a tenth of a second to import.
    from segstore.tiers.s3.opening import open_s3

    tier = await open_s3(
        location, config.s3, store_id=noted and noted[1], new_store_id=new_store_id
    )
    try:
        yield tier.owned_by
    finally:
        tier.close()


def _refuse_directory(config: SegmentStoreConfig, directory: DataDirectory) -> None:
    path = config.storage_dir or directory.storage_path
    with suppress(FileNotFoundError):
        if any(path.iterdir()):
            raise StorageConfigurationError(
                f"data directory {directory.path} has its tier 2 in {path}: it cannot be moved to"
                " S3; start without --tier2 or with another --data-dir"
            )


def _read_note(path: Path) -> tuple[str, str] | None:
    """Where tier 2 is and which store this is, or None if nothing is noted."""
    try:
        fields = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StorageConfigurationError(f"{path} cannot be read: {error}") from error
    match fields:
        case {"format_version": 1, "location": str(location), "store_id": str(store_id)}:
            return location, store_id
        case _:
            raise StorageConfigurationError(f"{path} is damaged or of another version: {fields}")


def _write_note(path: Path, location: str) -> tuple[str, str]:
    """Note where tier 2 is, unless another process just did; what is noted."""
    text = (
        "# Written by segstore. What it names belongs to this data directory.\n"
        f'format_version = 1\nlocation = "{location}"\nstore_id = "{os.urandom(16).hex()}"\n'
    )
    unfinished = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(unfinished, path)
        unfinished.unlink()
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    noted = _read_note(path)
    assert noted is not None, "it was just written"
    return noted
