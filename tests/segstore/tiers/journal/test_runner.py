"""The thread that writes, with disks for which it cannot do everything."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from segstore.errors import DataLogCorruptError, DataLogError
from segstore.tiers.api import Buffer
from segstore.tiers.journal import ContainerLog, Journal, JournalSettings, open_journal
from segstore.tiers.journal.disk import DiskFile, LocalDisk

KIB = 1024
SETTINGS = JournalSettings(
    file_bytes=512 * KIB,
    journal_bytes_max=8192 * KIB,
    batch_bytes_max=384 * KIB,
    no_space_retry_seconds=0.01,
    mark_delay_seconds=0.005,
)


@pytest.fixture(params=[0.0, 0.002], ids=["at once", "with an interval"])
def settings(request: pytest.FixtureRequest) -> JournalSettings:
    return replace(SETTINGS, interval_seconds_min=request.param)


class OtherDisk(LocalDisk):
    """The machine's disk, whose files send whoever writes to ``path``, and whose own durable
    writes fail with ``error``, and other writes with ``mark_error``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.path: str | None = None
        self.flags = os.O_RDWR
        self.error = 0
        self.mark_error = 0
        self.seconds = 0.0
        self.durable_writes = 0
        self.opened: list[int] = []

    def open_file(self, name: str) -> Any:
        return OtherFile(self, super().open_file(name))

    def create_file(self, name: str) -> Any:
        return OtherFile(self, super().create_file(name))

    def close(self) -> None:
        for descriptor in self.opened:
            os.close(descriptor)


class OtherFile:
    def __init__(self, disk: OtherDisk, file: DiskFile) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def writing_descriptor(self) -> int | None:
        if self._disk.path is None:
            return self._file.writing_descriptor()
        self._disk.opened.append(os.open(self._disk.path, self._disk.flags))
        return self._disk.opened[-1]

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        if self._disk.mark_error:
            raise OSError(self._disk.mark_error, os.strerror(self._disk.mark_error))
        self._file.write(buffers, offset)

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        if self._disk.error:
            raise OSError(self._disk.error, os.strerror(self._disk.error))
        self._disk.durable_writes += 1
        time.sleep(self._disk.seconds)
        self._file.write_durably(buffers, offset)


class Answers:
    """A writer that appends, and keeps the answers in order."""

    def __init__(self, log: ContainerLog) -> None:
        self._log = log
        self._changed = trio.Event()
        self.sent: list[bytes] = []
        self.got: list[DataLogError | None] = []

    def append(self, data: bytes) -> None:
        self.sent.append(data)
        self._log.append_nowait([data], self._answer)

    def _answer(self, error: DataLogError | None) -> None:
        self.got.append(error)
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self) -> None:
        with trio.fail_after(60):
            while len(self.got) < len(self.sent):
                await self._changed.wait()


async def stored(directory: Path) -> list[bytes]:
    async with open_journal(directory, SETTINGS) as journal:
        log = await journal.open_log(0)
        return [entry.data async for entry in log.read()]


async def begun(journal: Journal) -> Answers:
    answers = Answers(await journal.open_log(0))
    answers.append(b"first")
    await answers.wait()
    return answers


async def test_what_the_thread_cannot_write_is_written_in_order_all_the_same(
    tmp_path: Path, settings: JournalSettings
) -> None:
    disk = OtherDisk(tmp_path)
    async with open_journal(tmp_path, settings, disk=disk) as journal:
        answers = await begun(journal)
        before = disk.durable_writes
        for turn in range(40):
            # It takes bytes, but knows no synced writes.
            disk.path = "/dev/full" if turn % 3 == 0 else None
            for index in range(3):
                answers.append(b"%d.%d" % (turn, index) * 1000)
                await trio.lowlevel.checkpoint()
            if turn % 4 == 0:
                await answers.wait()
        await answers.wait()
        assert disk.durable_writes > before
        disk.path = None
    assert answers.got == [None] * 121
    assert await stored(tmp_path) == answers.sent
    disk.close()


async def test_a_batch_behind_one_that_failed_fails_too_and_is_not_written(
    tmp_path: Path, settings: JournalSettings
) -> None:
    disk = OtherDisk(tmp_path)
    async with open_journal(tmp_path, settings, disk=disk) as journal:
        answers = await begun(journal)
        await trio.sleep(0.05)
        disk.path, disk.flags = os.devnull, os.O_RDONLY
        answers.append(b"lost")
        while not disk.opened:
            await trio.lowlevel.checkpoint()
        disk.path = None  # the batch behind it would go to the right place
        answers.append(b"lost too")
        await answers.wait()
        answers.append(b"refused")
        await answers.wait()
        assert journal.failed.is_set()
        assert isinstance(journal.failure, DataLogError)
        assert isinstance(journal.failure.__cause__, OSError)
        assert journal.failure.__cause__.errno == errno.EBADF
    assert answers.got[0] is None
    assert answers.got[1:] == [journal.failure] * 3
    assert await stored(tmp_path) == [b"first"]
    disk.close()


async def test_what_meets_a_full_disk_waits_and_is_durable_in_order(
    tmp_path: Path, settings: JournalSettings
) -> None:
    disk = OtherDisk(tmp_path)
    async with open_journal(tmp_path, settings, disk=disk) as journal:
        answers = await begun(journal)
        disk.path, disk.error = "/dev/full", errno.ENOSPC
        for index in range(20):
            answers.append(b"%d" % index)
            await trio.sleep(0.002)
        assert answers.got == [None]
        disk.error = 0
        await answers.wait()
    assert answers.got == [None] * 21
    assert await stored(tmp_path) == answers.sent
    disk.close()


async def test_a_journal_that_is_closed_while_the_disk_is_full_ends_and_tells(
    tmp_path: Path, settings: JournalSettings
) -> None:
    disk = OtherDisk(tmp_path)
    with trio.fail_after(60):
        async with open_journal(tmp_path, settings, disk=disk) as journal:
            answers = await begun(journal)
            disk.path, disk.error = "/dev/full", errno.ENOSPC
            answers.append(b"never")
            await trio.sleep(0.05)
    assert [type(answer) for answer in answers.got] == [type(None), DataLogError]
    assert await stored(tmp_path) == [b"first"]
    disk.close()


async def test_a_file_that_cannot_be_made_fails_what_waits_for_a_full_disk(
    tmp_path: Path, settings: JournalSettings
) -> None:
    disk = OtherDisk(tmp_path)
    with trio.fail_after(60):
        async with open_journal(tmp_path, settings, disk=disk) as journal:
            answers = await begun(journal)
            disk.path, disk.error = "/dev/full", errno.ENOSPC
            answers.append(b"never")
            await trio.sleep(0.05)
            disk.error = errno.EIO
            await answers.wait()
            assert journal.failed.is_set()
    assert isinstance(answers.got[1], DataLogError)
    disk.close()


@pytest.mark.parametrize("pause_seconds", [0.0, 0.02])
async def test_files_roll_over_while_batches_are_being_written(
    tmp_path: Path, pause_seconds: float, settings: JournalSettings
) -> None:
    async with open_journal(tmp_path, settings) as journal:
        answers = await begun(journal)
        for index in range(60):
            answers.append(b"%03d" % index * 20_000)
            await trio.sleep(0 if index % 10 else pause_seconds)
        await answers.wait()
    assert answers.got == [None] * 61
    assert len(os.listdir(tmp_path)) > 5
    assert await stored(tmp_path) == answers.sent


async def test_what_is_queued_when_the_journal_closes_is_durable(
    tmp_path: Path, settings: JournalSettings
) -> None:
    async with open_journal(tmp_path, settings) as journal:
        answers = await begun(journal)
        for index in range(30):
            answers.append(b"%d" % index * 5000)
    assert answers.got == [None] * 31
    assert await stored(tmp_path) == answers.sent


async def test_damage_to_a_last_batch_that_was_written_slowly_is_no_torn_write(
    tmp_path: Path, settings: JournalSettings
) -> None:
    directory, image = tmp_path / "journal", tmp_path / "image"
    directory.mkdir()
    disk = OtherDisk(directory)
    async with open_journal(directory, settings, disk=disk) as journal:
        answers = await begun(journal)
        await trio.sleep(0.05)
        disk.path, disk.seconds = "/dev/full", 10 * settings.mark_delay_seconds
        answers.append(b"slowly" * 100)
        await answers.wait()
        await trio.sleep(20 * settings.mark_delay_seconds)
        shutil.copytree(directory, image)
    assert answers.got == [None, None]
    file = min(image.iterdir())
    content = file.read_bytes()
    assert content.count(b"slowly" * 100) == 1
    file.write_bytes(content.replace(b"slowly" * 100, b"damage" * 100))
    with pytest.raises(DataLogCorruptError, match=file.name):
        await stored(image)
    disk.close()


async def test_the_failure_of_an_idle_journal_is_known_before_anything_is_appended(
    tmp_path: Path, settings: JournalSettings
) -> None:
    disk = OtherDisk(tmp_path)
    async with open_journal(tmp_path, settings, disk=disk) as journal:
        answers = await begun(journal)
        answers.append(b"stored")
        await answers.wait()
        # Not before: on a slow machine the mark behind the first entry may still be due.
        disk.mark_error = errno.EIO
        with trio.fail_after(60):
            await journal.failed.wait()
        assert isinstance(journal.failure, DataLogError)
        assert answers.got == [None, None]
        answers.append(b"late")
        await answers.wait()
        assert answers.got[2:] == [journal.failure]
    assert await stored(tmp_path) == answers.sent[:2]


async def test_a_journal_that_is_cancelled_while_its_thread_starts_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: JournalSettings
) -> None:
    eventfd = os.eventfd
    with trio.CancelScope() as scope:

        def cancel(*arguments: int) -> int:
            scope.cancel()
            return eventfd(*arguments)

        monkeypatch.setattr(os, "eventfd", cancel)
        async with open_journal(tmp_path, settings):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert await stored(tmp_path) == []
