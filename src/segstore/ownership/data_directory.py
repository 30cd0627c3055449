"""The data directory of a store: the store that it belongs to, and the locks of its parts.

Owns: ``DataDirectory``, the version file ``segstore.toml`` and the locks;
docs/formats/data-directory.md describes the layout. Refusals follow the rules in the package's
docstring.

Invariants:
1. When a directory is new, its version file is the first file in it. Held by
   ``test_a_new_directory_is_made_with_those_above_it``. The version file is always replaced as a
   whole, so a crash leaves the old one or the new one. Held by
   ``test_whatever_step_a_start_is_killed_at_the_next_one_finishes_it``.
2. When a directory has other files and no version file, it is refused. Held by
   ``test_a_directory_of_somebody_else_is_refused_and_left_alone``.
3. When a store may have stored something, its number of containers does not change any more. Held
   by ``test_another_count_of_containers_is_refused`` and
   ``test_the_counts_may_change_while_nothing_was_ever_stored``.
4. While a process uses a journal, no other process opens it; when the process ends, in any way, the
   journal is free. Held by ``test_another_process_is_named_and_its_death_frees_the_journal``.
5. When logs move to other journals, one process holds the locks of all journals, replaces the
   version file once, and increases the number of the layout. A start that read an earlier layout is
   refused. Held by ``test_a_move_that_is_killed_at_any_step_loses_nothing`` and
   ``test_a_store_does_not_go_on_by_a_layout_that_has_changed``.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from segstore.errors import DataDirectoryError, DataDirectoryInUseError
from segstore.ownership.holders import (
    WAIT_SECONDS,
    HeldError,
    Tell,
    log_wait,
    take_lock,
    write_holder,
)
from segstore.runtime.durable_files import make_directory, sync_directory, write_durably
from segstore.runtime.refused_files import reason_of

FORMAT_VERSION = 3
MOVED_VERSION = 4
"""Version of a directory in which logs of containers were moved to other journals."""
READ_VERSIONS = frozenset({FORMAT_VERSION, MOVED_VERSION})
VERSION_FILE = "segstore.toml"
FOREIGN_NAMES = frozenset({"run", "logs", "lost+found", "security"})
"""Names that may be in a directory before a store is made in it: those of supervisors' files, of a
new file system, and of users that were added before the first start."""
_STORE_ID = re.compile("[0-9a-f]{32}", re.ASCII)


class StoreState(StrEnum):
    """The states of a store while it is made."""

    NEW = "new"
    """Tiers of the store may lack their identities. None of them has data."""
    COMPLETE = "complete"
    """Every tier of the store has its identity. A tier without one is not the store's."""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A data directory, as its version file describes it. ``DataDirectory.open`` makes one."""

    path: Path
    container_count: int
    journal_count: int
    store_id: str
    """The identity that all tiers of the store have: 32 hexadecimal digits."""
    state: StoreState
    tier_2: str = ""
    """Location of tier 2 at the last start; empty before the store is made."""
    layout: int = 0
    """Number of times that logs of containers were moved to other journals."""
    journals: tuple[int, ...] = ()
    """The journal of each container; empty while no log was ever moved."""
    stores: tuple[int, ...] = ()
    """The store of each container, as it was when logs were moved last."""

    @property
    def format_version(self) -> int:
        """Return the format version of the version file."""
        return MOVED_VERSION if self.layout else FORMAT_VERSION

    @classmethod
    def open(cls, path: Path, *, container_count: int = 4, journal_count: int = 1) -> DataDirectory:
        """Open the directory; make it first if it does not exist or is empty.

        An existing directory keeps its ``journal_count``, and another ``container_count`` is
        refused, because segments would be looked for in the wrong containers. Both numbers may
        change as long as nothing was stored. Blocks. Raises ``DataDirectoryError``.
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
        if found.container_count == container_count:
            return found
        if not found._is_unused():
            raise DataDirectoryError(
                f"data directory {path} was made for {found.container_count} containers and cannot"
                f" be used with {container_count}"
            )
        return found._change_counts(container_count, journal_count)

    @staticmethod
    def exists(path: Path) -> bool:
        """Return whether the directory has a version file."""
        return (path / VERSION_FILE).exists()

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
        """Replace the version file durably, and return what it says now. Blocks.

        The caller holds a lock in the directory, and the locks of all journals if the layout
        changes. Raises ``DataDirectoryError``.
        """
        written = replace(
            self,
            store_id=store_id,
            state=state,
            tier_2=tier_2,
        )
        try:
            os.replace(_write_unfinished(written), self.path / VERSION_FILE)
            sync_directory(self.path)
        except OSError as error:
            raise DataDirectoryError(
                f"data directory {self.path} cannot be used: {reason_of(error, self.path)}"
            ) from error
        return written

    def _is_unused(self) -> bool:
        """Return whether nothing was stored yet: the store is new and has no journals."""
        has_journals = any(self.journal_path(each).exists() for each in range(self.journal_count))
        return self.state is StoreState.NEW and not has_journals

    def _change_counts(self, container_count: int, journal_count: int) -> DataDirectory:
        """Change the counts of an unused directory. Raises ``DataDirectoryError``."""
        with ExitStack() as stack:
            # A store locks a journal before it makes the journal. So no start is under way while
            # these locks are held.
            for journal in range(self.journal_count):
                stack.enter_context(self.lock_journal(journal, wait_seconds=0))
            now = DataDirectory.read(self.path)
            if not now._is_unused():
                raise DataDirectoryError(f"{self.path} became another's just now: start again")
            changed = replace(now, container_count=container_count, journal_count=journal_count)
            return changed.write(store_id=now.store_id, state=now.state, tier_2=now.tier_2)

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
        """Return the directory of tier 2 for a store that configures no other place."""
        return self.path / "storage"

    def journal_path(self, journal: int) -> Path:
        """Return the directory of a journal."""
        return self.path / f"journal-{journal}"

    def recovered_path(self, journal: int) -> Path:
        """Return the directory in which a recovery has the complete new journal, until it has moved
        the old one away."""
        return self.path / f"journal-{journal}.recovered"

    def journal_of(self, container_id: int) -> int:
        """Return the number of the journal that has a container's log."""
        return self.journals_of_containers()[container_id]

    def journals_of_containers(self) -> tuple[int, ...]:
        """Return the journal of each container; the containers' numbers are the positions."""
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
        """Hold the locks of these journals, and yield the data directory as it is now.

        Raises ``DataDirectoryError`` when another process uses one of the journals, or has moved
        logs to other journals since this object was read.
        """
        with ExitStack() as stack:
            for journal in journals:
                stack.enter_context(self.lock_journal(journal))
            now = DataDirectory.read(self.path)
            if (now.layout, now.container_count) != (self.layout, self.container_count):
                raise DataDirectoryError(
                    f"logs of containers in data directory {self.path} were moved to other journals"
                    " just now: start again"
                )
            yield now

    @contextmanager
    def lock_journal(self, journal: int, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[Path]:
        """Hold the lock of a journal, and yield the journal's directory, which may be missing.

        Blocks for up to ``wait_seconds`` while another process has the lock. Raises
        ``DataDirectoryError`` with the number of the process that uses the journal.
        """
        with self.lock(f"journal-{journal}", wait_seconds=wait_seconds):
            yield self.journal_path(journal)

    def lock_inode(self, journal: int) -> int:
        """Return the inode number of a journal's lock file, which is another one in a copy of the
        directory. Raises ``DataDirectoryError``."""
        path = self.path / f"journal-{journal}.lock"
        try:
            return path.stat().st_ino
        except OSError as error:
            raise DataDirectoryError(
                f"{path} cannot be looked up: {reason_of(error, path)}"
            ) from error

    @contextmanager
    def lock(
        self, role: str, *, wait_seconds: float = WAIT_SECONDS, tell: Tell = log_wait
    ) -> Iterator[int]:
        """Hold the lock with the name ``role`` in this directory, for the block. Waits as
        ``lock_journal`` does, and tells of a longer wait.

        Yields the descriptor of the lock file: a process that inherits it holds the lock, too.
        Raises ``DataDirectoryInUseError`` when another process has the lock.
        """
        path = self.path / f"{role}.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataDirectoryError(
                f"{path} cannot be opened: {reason_of(error, path)}"
            ) from error
        try:
            try:
                take_lock(
                    descriptor,
                    f"data directory {self.path}",
                    remark=f", which holds {path.name}: end it, or name another directory",
                    wait_seconds=wait_seconds,
                    tell=tell,
                )
            except HeldError as error:
                raise DataDirectoryInUseError(str(error)) from error
            except OSError as error:
                raise DataDirectoryError(
                    f"{path} cannot be locked: {reason_of(error, path)}"
                ) from error
            try:
                write_holder(descriptor)
            except OSError as error:
                raise DataDirectoryError(
                    f"{path} cannot be written: {reason_of(error, path)}"
                ) from error
            yield descriptor
        finally:
            os.close(descriptor)


def _read_version_file(path: Path) -> DataDirectory | None:
    """Read and check the version file; return None if there is none."""
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
            found = _with_identity(path, container_count, journal_count, fields)
        case _:
            raise DataDirectoryError(f"{path / VERSION_FILE} is damaged: its counts are {counts}")
    return _with_journals(found, fields) if version == MOVED_VERSION else found


def _with_journals(found: DataDirectory, fields: dict[str, Any]) -> DataDirectory:
    """Return the directory with its layout, which the version file has if logs were moved."""
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


def _with_identity(
    path: Path, container_count: int, journal_count: int, fields: dict[str, Any]
) -> DataDirectory:
    match fields:
        case {"store_id": str(store_id), "state": str(state), "tier_2": str(tier_2)} if (
            _STORE_ID.fullmatch(store_id) and state in list(StoreState)
        ):
            return DataDirectory(
                path, container_count, journal_count, store_id, StoreState(state), tier_2
            )
        case _:
            raise DataDirectoryError(
                f"{path / VERSION_FILE} is damaged: it does not say which store it belongs to"
            )


def _refuse_foreign(path: Path) -> None:
    try:
        names = sorted(set(os.listdir(path)) - FOREIGN_NAMES)
    except FileNotFoundError:
        return
    if VERSION_FILE in names:  # another process has made the store meanwhile
        return
    if names and not all(name.startswith(f"{VERSION_FILE}.new-") for name in names):
        raise DataDirectoryError(
            f"{path} holds {names[0]} and no {VERSION_FILE}: it is not a segstore data directory,"
            " and a new one is made only where nothing is"
        )


def _make(path: Path, *, container_count: int, journal_count: int) -> None:
    """Make the directory and its version file. If another process makes the version file first,
    keep that one."""
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
    """Write the version file durably under a temporary name, and return its path."""
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
    """Return a text as a value in TOML. Characters that cannot be printed become ``?``."""
    printable = "".join(each if each.isprintable() else "?" for each in text)
    return json.dumps(printable, ensure_ascii=False)
