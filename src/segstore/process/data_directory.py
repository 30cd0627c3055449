"""The directory in which a store keeps everything: whose it is, and who uses what in it.

Owns: ``DataDirectory``, the version file and the locks; docs/formats/data-directory.md describes
the layout.

Invariants:
1. ``segstore.toml`` is written whole, before anything else of a store, and again only to note that
   the store is made (``process.identity``) or where its tier 2 is now; nothing else that was there
   before is overwritten, and a directory that is not empty and has no such file is refused.
2. A journal is used by one process at a time, which holds its lock from the opening until it
   ends, however it ends.
3. A directory that cannot be used is not changed.
4. Which journal has a container's log changes only while one process holds the locks of all
   journals, by one replacement of the version file, and the layout's number grows with it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from segstore.errors import DataDirectoryError, DataDirectoryInUseError
from segstore.runtime.durable_files import make_directory, sync_directory, write_durably
from segstore.runtime.refused_files import reason_of

FORMAT_VERSION = 3
MOVED_VERSION = 4
"""Version of a directory in which logs of containers were moved to other journals."""
OLDER_VERSIONS = frozenset({2})
"""Versions that are read, and become this one when their tiers get identities: an older segstore
knows nothing of these, and must not open what has them."""
READ_VERSIONS = OLDER_VERSIONS | {FORMAT_VERSION, MOVED_VERSION}
VERSION_FILE = "segstore.toml"
FOREIGN_NAMES = frozenset({"run", "logs", "lost+found"})
"""Names of what may be in a directory before a store is made in it: supervisors' files, a fresh
disk's."""
LOCK_SECONDS = 3.0
"""Maximum time, in seconds, that a killed process may take to end."""
_STORE_ID = re.compile("[0-9a-f]{32}", re.ASCII)


class StoreState(StrEnum):
    """The progress of making a store."""

    NEW = "new"
    """Its tiers may have no identities yet, and no data either."""
    OLDER = "older"
    """Its tiers may have no identities yet, and data of an older version."""
    COMPLETE = "complete"
    """Every tier has its identity; one that has none is not the store's."""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A data directory. Use ``DataDirectory.open``."""

    path: Path
    container_count: int
    journal_count: int
    store_id: str = ""
    """The identity that all tiers of the store have: 32 hexadecimal digits; empty before version
    3."""
    state: StoreState = StoreState.OLDER
    tier_2: str = ""
    """Location of tier 2 at the last start; empty before the store is made."""
    layout: int = 0
    """Number of times that logs of containers were moved to other journals."""
    journals: tuple[int, ...] = ()
    """The journal of each container; empty while no log was ever moved."""
    stores: tuple[int, ...] = ()
    """The store of each container, by its number, for which logs were moved last."""
    format_version: int = FORMAT_VERSION

    @classmethod
    def open(cls, path: Path, *, container_count: int = 4, journal_count: int = 1) -> DataDirectory:
        """Open the directory, making it first if there is none or it is empty.

        The counts of an existing directory are kept: ``journal_count`` as it was given when the
        directory was made, and another ``container_count`` is refused, since segments would be
        looked for in the wrong containers. Blocks. Raises ``DataDirectoryError``.
        """
        try:
            found = _read_version_file(path)
            if found is None:
                _refuse_foreign(path)
                _make(path, container_count=container_count, journal_count=journal_count)
                found = _read_version_file(path)
        except OSError as error:
            raise DataDirectoryError(
                f"data directory {path} cannot be used: {reason_of(error, path)}"
            ) from error
        assert found is not None, "it was just made"
        if found.container_count != container_count:
            raise DataDirectoryError(
                f"data directory {path} was made for {found.container_count} containers and cannot"
                f" be used with {container_count}"
            )
        return found

    @classmethod
    def read(cls, path: Path) -> DataDirectory:
        """Return what the version file of an existing directory says. Raises
        ``DataDirectoryError``."""
        try:
            found = _read_version_file(path)
        except OSError as error:
            raise DataDirectoryError(
                f"data directory {path} cannot be read: {reason_of(error, path)}"
            ) from error
        if found is None:
            raise DataDirectoryError(
                f"{path / VERSION_FILE} is missing: {path} is no data directory"
            )
        return found

    def write(self, *, store_id: str, state: StoreState, tier_2: str) -> DataDirectory:
        """Write the version file anew, in this version, durably. Blocks.

        The caller holds a lock in the directory, and all journals' locks when the layout is a new
        one. Raises ``DataDirectoryError``.
        """
        written = replace(
            self,
            store_id=store_id,
            state=state,
            tier_2=tier_2,
            format_version=MOVED_VERSION if self.layout else FORMAT_VERSION,
        )
        try:
            os.replace(_write_unfinished(written), self.path / VERSION_FILE)
            sync_directory(self.path)
        except OSError as error:
            raise DataDirectoryError(
                f"data directory {self.path} cannot be used: {reason_of(error, self.path)}"
            ) from error
        return written

    def with_journals(
        self, journals: Sequence[int], journal_count: int, *, stores: Sequence[int]
    ) -> DataDirectory:
        """Return the next layout, in which the containers' logs are in these journals. Writes
        nothing."""
        assert len(journals) == len(stores) == self.container_count
        return replace(
            self,
            journals=tuple(journals),
            journal_count=journal_count,
            stores=tuple(stores),
            layout=self.layout + 1,
        )

    @property
    def storage_path(self) -> Path:
        """Return where tier 2 is unless it is configured to be elsewhere."""
        return self.path / "storage"

    def journal_path(self, journal: int) -> Path:
        """Return the directory of a journal."""
        return self.path / f"journal-{journal}"

    def journal_of(self, container_id: int) -> int:
        """Return the journal that has a container's log, whatever process hosts the container."""
        return self.journals_of_containers()[container_id]

    def journals_of_containers(self) -> tuple[int, ...]:
        """Return the journal of each container, by the containers' numbers."""
        plain = (each % self.journal_count for each in range(self.container_count))
        return self.journals or tuple(plain)

    def containers_of(self, journal: int) -> tuple[int, ...]:
        """Return the containers whose logs are in a journal."""
        found = self.journals_of_containers()
        return tuple(each for each, number in enumerate(found) if number == journal)

    def journals_with(self, container_ids: Iterable[int]) -> list[int]:
        """Return the journals that have the logs of these containers."""
        return sorted({self.journal_of(each) for each in container_ids})

    @contextmanager
    def lock_journals(self, journals: Iterable[int]) -> Iterator[DataDirectory]:
        """Hold these journals, and yield what the version file says by then.

        Raises ``DataDirectoryError`` when one is in use, or when logs were moved meanwhile.
        """
        with ExitStack() as stack:
            for journal in journals:
                stack.enter_context(self.lock_journal(journal))
            now = DataDirectory.read(self.path)
            if now.layout != self.layout:
                raise DataDirectoryError(
                    f"logs of containers in data directory {self.path} were moved to other journals"
                    " just now: start again"
                )
            yield now

    @contextmanager
    def lock_journal(self, journal: int, *, wait_seconds: float = LOCK_SECONDS) -> Iterator[Path]:
        """Hold a journal and yield its directory, which may be missing.

        Waits up to ``wait_seconds`` for a killed process to be gone, blocking; raises
        ``DataDirectoryError`` naming the process that holds it.
        """
        with self.lock(f"journal-{journal}", wait_seconds=wait_seconds):
            yield self.journal_path(journal)

    def lock_inode(self, journal: int) -> int:
        """Return the inode number of a journal's lock file: a copy of the directory has another
        one. Raises ``DataDirectoryError``."""
        path = self.path / f"journal-{journal}.lock"
        try:
            return path.stat().st_ino
        except OSError as error:
            raise DataDirectoryError(
                f"{path} cannot be looked up: {reason_of(error, path)}"
            ) from error

    @contextmanager
    def lock(self, role: str, *, wait_seconds: float = LOCK_SECONDS) -> Iterator[int]:
        """Hold the lock of ``role`` in this directory. Like ``lock_journal`` for other uses.

        Yields a file descriptor: processes that inherit it hold the lock too. Raises
        ``DataDirectoryInUseError`` when another process plays it.
        """
        path = self.path / f"{role}.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataDirectoryError(
                f"{path} cannot be opened: {reason_of(error, path)}"
            ) from error
        try:
            self._acquire(descriptor, role, wait_seconds)
            try:
                os.pwrite(descriptor, f"{os.getpid()}\n".encode().ljust(16), 0)
            except OSError as error:
                raise DataDirectoryError(
                    f"{path} cannot be written: {reason_of(error, path)}"
                ) from error
            yield descriptor
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int, role: str, wait_seconds: float) -> None:
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise DataDirectoryError(
                        f"{role} of data directory {self.path} cannot be locked: {error.strerror}"
                    ) from error
            holder = _holder(descriptor)
            if time.monotonic() > deadline or (holder is not None and _lives(holder)):
                who = "" if holder is None else f" (process {holder})"
                raise DataDirectoryInUseError(
                    f"data directory {self.path} is in use by another segstore{who}: it holds"
                    f" {role}.lock"
                )
            time.sleep(0.02)


def _read_version_file(path: Path) -> DataDirectory | None:
    """Read and check the version file; None when there is none."""
    try:
        text = (path / VERSION_FILE).read_text("utf-8")
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise DataDirectoryError(f"data directory {path} is not a directory") from None
    except UnicodeDecodeError as error:
        raise DataDirectoryError(f"{path / VERSION_FILE} is damaged: {error}") from error
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataDirectoryError(f"{path / VERSION_FILE} is damaged: {error}") from error
    version = fields.get("format_version")
    if version not in READ_VERSIONS:
        raise DataDirectoryError(
            f"data directory {path} has format version {version}; this segstore reads versions"
            f" {min(READ_VERSIONS)} to {max(READ_VERSIONS)}"
        )
    counts = [fields.get("container_count"), fields.get("journal_count")]
    match counts:
        case [int(container_count), int(journal_count)] if container_count > 0 < journal_count:
            found = DataDirectory(path, container_count, journal_count, format_version=version)
        case _:
            raise DataDirectoryError(f"{path / VERSION_FILE} is damaged: its counts are {counts}")
    if version == MOVED_VERSION:
        found = _with_journals(found, fields)
    return found if version in OLDER_VERSIONS else _with_identity(found, fields)


def _with_journals(found: DataDirectory, fields: dict[str, Any]) -> DataDirectory:
    """Add what a directory says in which logs were moved."""
    match fields:
        case {"layout": int(layout), "journals": list(journals), "stores": list(stores)} if (
            layout > 0
            and len(journals) == len(stores) == found.container_count
            and all(each in range(found.journal_count) for each in journals)
            and sorted(set(stores)) == list(range(len(set(stores))))
        ):
            return replace(found, layout=layout, journals=tuple(journals), stores=tuple(stores))
        case _:
            raise DataDirectoryError(
                f"{found.path / VERSION_FILE} is damaged: it does not say which journal has the log"
                " of each container"
            )


def _with_identity(found: DataDirectory, fields: dict[str, Any]) -> DataDirectory:
    match fields:
        case {"store_id": str(store_id), "state": str(state), "tier_2": str(tier_2)} if (
            _STORE_ID.fullmatch(store_id) and state in list(StoreState)
        ):
            return replace(found, store_id=store_id, state=StoreState(state), tier_2=tier_2)
        case _:
            raise DataDirectoryError(
                f"{found.path / VERSION_FILE} is damaged: it does not say which store it belongs to"
            )


def _refuse_foreign(path: Path) -> None:
    try:
        names = sorted(set(os.listdir(path)) - FOREIGN_NAMES)
    except FileNotFoundError:
        return
    if VERSION_FILE in names:  # another process made the store since we looked for the file
        return
    if names and not all(name.startswith(f"{VERSION_FILE}.new-") for name in names):
        raise DataDirectoryError(
            f"{path} holds {names[0]} and no {VERSION_FILE}: it is not a segstore data directory,"
            " and a new one is made only where nothing is"
        )


def _make(path: Path, *, container_count: int, journal_count: int) -> None:
    """Make the directory and its version file, unless another process is faster."""
    assert container_count > 0
    assert journal_count > 0
    make_directory(path)
    new = DataDirectory(path, container_count, journal_count, new_store_id(), StoreState.NEW)
    unfinished = _write_unfinished(new)
    try:
        with suppress(FileExistsError):
            os.link(unfinished, path / VERSION_FILE)
    finally:
        unfinished.unlink()
    sync_directory(path)


def new_store_id() -> str:
    """Return an identity that no other store has."""
    return os.urandom(16).hex()


def _write_unfinished(directory: DataDirectory) -> Path:
    """Write a version file under another name, durably."""
    moved = (
        f"layout = {directory.layout}\n"
        f"journals = {list(directory.journals)}\n"
        f"stores = {list(directory.stores)}\n"
    )
    text = (
        "# A segstore data directory. Do not edit.\n"
        f"format_version = {directory.format_version}\n"
        f"container_count = {directory.container_count}\n"
        f"journal_count = {directory.journal_count}\n"
        f"{moved if directory.layout else ''}"
        f'store_id = "{directory.store_id}"\n'
        f'state = "{directory.state}"\n'
        f"tier_2 = {quote_toml(directory.tier_2)}\n"
    )
    unfinished = directory.path / f"{VERSION_FILE}.new-{os.getpid()}"
    write_durably(unfinished, text)
    return unfinished


def quote_toml(text: str) -> str:
    """Return a text as a value in TOML; what cannot be printed, such as a path's stray bytes,
    becomes ``?``."""
    printable = "".join(each if each.isprintable() else "?" for each in text)
    return json.dumps(printable, ensure_ascii=False)


def _holder(descriptor: int) -> int | None:
    """Return the process that wrote its number into the lock file, or None."""
    try:
        return int(os.pread(descriptor, 16, 0))
    except ValueError:
        return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
