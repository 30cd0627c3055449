"""The journal as a whole: group commit, rollover, recycling, full disks, failing disks."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio
import trio.lowlevel
import trio.testing

from segstore.errors import DataLogError
from segstore.tiers.api import LogAddress
from segstore.tiers.journal import ContainerLog, JournalSettings, open_journal
from segstore.tiers.journal.disk import LocalDisk, LocalFile
from support.open_files import list_open_files
from support.simulated.simulated_disk import SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal

KIB = 1024
SETTINGS = JournalSettings(
    file_bytes=512 * KIB,
    journal_bytes_max=2048 * KIB,
    batch_bytes_max=384 * KIB,
    files_spare_max=2,
)
ENTRY = 100 * KIB


class Appends:
    """A writer that appends and keeps the answers."""

    def __init__(self) -> None:
        self.answers: list[DataLogError | None] = []
        self.addresses: list[LogAddress] = []
        self._changed = trio.Event()

    def add(self, log: ContainerLog, data: bytes) -> LogAddress:
        def on_durable(error: DataLogError | None) -> None:
            self.answers.append(error)
            self._changed.set()
            self._changed = trio.Event()

        self.addresses.append(log.append_nowait([data], on_durable))
        return self.addresses[-1]

    async def wait(self, count: int | None = None) -> None:
        count = len(self.addresses) if count is None else count
        while len(self.answers) < count:
            await self._changed.wait()


async def read_all(log: ContainerLog) -> list[bytes]:
    return [entry.data async for entry in log.read()]


async def test_what_is_queued_together_is_synced_once() -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        logs = [await journal.open_log(container) for container in range(4)]
        appends = Appends()
        before = disk.sync_count
        for index in range(400):
            appends.add(logs[index % 4], b"x" * 100)
        await appends.wait()
        assert disk.sync_count == before + 1
        assert appends.answers == [None] * 400


async def test_what_arrives_during_a_batch_goes_into_the_next_one() -> None:
    disk = SimulatedDisk()
    opening = open_simulated_journal(disk, SETTINGS, latency_seconds=lambda _: 0.001)
    async with opening as journal:
        log = await journal.open_log(0)
        await trio.sleep(0.1)
        before = disk.sync_count
        appends = Appends()
        for _ in range(10):
            for _ in range(20):
                appends.add(log, b"x")
            await trio.lowlevel.checkpoint()
        await appends.wait()
        assert disk.sync_count <= before + 4


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


async def test_what_others_have_on_the_way_counts_for_the_bound_of_the_journal(
    autojump_clock: trio.testing.MockClock,
) -> None:
    opening = open_simulated_journal(SimulatedDisk(), SETTINGS, latency_seconds=lambda _: 0.001)
    async with opening as journal:
        logs = [await journal.open_log(container_id) for container_id in range(3)]
        before = journal.log_bytes()
        assert before == SETTINGS.file_bytes
        appends = Appends()
        for log in logs:
            appends.add(log, b"x" * 1000)
        assert journal.log_bytes() == before + 3000
        await appends.wait()
        assert journal.log_bytes() == before


async def test_files_are_recycled_as_logs_are_truncated() -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        created = set()
        for _ in range(60):
            appends = Appends()
            appends.add(log, os.urandom(ENTRY))
            await appends.wait()
            await log.truncate(appends.addresses[-1])
            await trio.testing.wait_all_tasks_blocked()
            created.add(len(disk.list_files()))
        assert max(created) <= 4
        assert journal.log_bytes() <= SETTINGS.file_bytes * 2
        assert max(disk.list_files()) > f"{10:020d}"


async def test_an_idle_container_holds_only_the_files_it_needs() -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        idle = await journal.open_log(1)
        busy = await journal.open_log(2)
        first = Appends()
        first.add(idle, b"the idle container's last checkpoint")
        await first.wait()
        for _ in range(60):
            appends = Appends()
            appends.add(busy, bytes(ENTRY))
            await appends.wait()
            await busy.truncate(appends.addresses[-1])
            await trio.testing.wait_all_tasks_blocked()
        assert journal.log_bytes() <= SETTINGS.file_bytes * 3
    async with open_simulated_journal(disk, SETTINGS) as journal:
        idle = await journal.open_log(1)
        assert await read_all(idle) == [b"the idle container's last checkpoint"]
        busy = await journal.open_log(2)
        assert len(await read_all(busy)) == 1


async def test_appends_wait_while_the_journal_is_full_and_go_on_after_a_truncation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        appends = Appends()
        for _ in range(40):
            appends.add(log, bytes(ENTRY))
            await trio.testing.wait_all_tasks_blocked()
        stored = len(appends.answers)
        assert 10 < stored < 20
        assert capsys.readouterr().out.count("the journal is full") == 1
        await log.truncate(appends.addresses[stored - 1])
        await trio.testing.wait_all_tasks_blocked()
        assert len(appends.answers) > stored + 10
        while len(appends.answers) < 40:
            await log.truncate(appends.addresses[len(appends.answers) - 1])
            await trio.testing.wait_all_tasks_blocked()
        assert appends.answers == [None] * 40
        assert len(disk.list_files()) == 4


async def test_a_file_is_not_used_again_before_it_is_durably_free(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        appends = Appends()
        for _ in range(40):
            appends.add(log, bytes(ENTRY))
        await trio.testing.wait_all_tasks_blocked()
        stored, names = len(appends.answers), disk.list_files()
        disk.write_errors = {disk.step_count + number: errno.ENOSPC for number in range(1000)}
        await log.truncate(appends.addresses[stored - 1])
        await trio.sleep(10)
        assert (len(appends.answers), disk.list_files()) == (stored, names)
        disk.write_errors = {}
        await trio.sleep(10)
        assert len(appends.answers) > stored
        assert disk.list_files() != names


async def test_a_full_journal_can_be_opened_and_truncated_again_and_again() -> None:
    disk = SimulatedDisk()
    for _ in range(20):
        async with open_simulated_journal(disk, SETTINGS) as journal:
            log = await journal.open_log(0)
            appends = Appends()
            for _ in range(30):
                appends.add(log, bytes(ENTRY))
            await trio.testing.wait_all_tasks_blocked()
            disk = disk.after_kill()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        entries = [entry async for entry in log.read()]
        await log.truncate(LogAddress(entries[-1].address.position + 1))
        appends = Appends()
        appends.add(log, b"there is space")
        await appends.wait()
        assert appends.answers == [None]


async def test_closing_on_a_full_disk_fails_what_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = SimulatedDisk()
    appends = Appends()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        await trio.testing.wait_all_tasks_blocked()
        disk.write_errors = {disk.step_count + number: errno.ENOSPC for number in range(100)}
        for _ in range(3):
            appends.add(log, b"x")
            await trio.lowlevel.checkpoint()
        assert appends.answers == []
    assert len(appends.answers) == 3
    assert "while it had no space" in str(appends.answers[0])


async def test_closing_a_full_journal_fails_what_waits() -> None:
    disk = SimulatedDisk()
    appends = Appends()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        for _ in range(40):
            appends.add(log, bytes(ENTRY))
        await trio.testing.wait_all_tasks_blocked()
        stored = len(appends.answers)
    assert appends.answers[:stored] == [None] * stored
    assert len(appends.answers) == 40
    assert "while it had no space" in str(appends.answers[-1])
    appends.add(log, b"late")
    await appends.wait()
    assert appends.answers[-1] is journal.failure


async def test_appends_wait_while_the_disk_is_full(
    capsys: pytest.CaptureFixture[str], autojump_clock: trio.testing.MockClock
) -> None:
    disk = SimulatedDisk(capacity_bytes=1200 * KIB)
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        appends = Appends()
        for _ in range(14):
            appends.add(log, bytes(ENTRY))
        await trio.sleep(10)
        assert 5 < len(appends.answers) < 12
        assert capsys.readouterr().out.count("is full: appends wait") == 1
        assert log.delay_reason == "the disk of . is full"
        disk.capacity_bytes = None
        with trio.fail_after(3):
            await appends.wait()
        assert appends.answers == [None] * 14
        assert log.delay_reason is None


async def test_a_disk_that_does_not_answer_is_told_until_it_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    opening = open_simulated_journal(SimulatedDisk(), SETTINGS, latency_seconds=lambda _: 60.0)
    async with opening as journal:
        log = await journal.open_log(0)
        appends = Appends()
        assert log.delay_reason is None
        appends.add(log, b"entry")
        await trio.sleep(4)
        assert log.delay_reason is None
        await trio.sleep(2)
        assert log.delay_reason == "the disk of . does not answer"
        await appends.wait()
        assert appends.answers == [None]
        assert log.delay_reason is None


async def test_a_batch_that_met_a_full_disk_is_written_again_in_full(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        await trio.testing.wait_all_tasks_blocked()
        appends = Appends()
        disk.write_errors = {disk.step_count + 1: errno.ENOSPC, disk.step_count + 2: errno.EDQUOT}
        data = os.urandom(3000)
        appends.add(log, data)
        await trio.lowlevel.checkpoint()
        assert appends.answers == []
        with trio.fail_after(5):
            await appends.wait()
        disk = disk.after_power_cut(Random(1))
    async with open_simulated_journal(disk, SETTINGS) as journal:
        assert await read_all(await journal.open_log(0)) == [data]


async def test_a_freed_file_that_met_a_full_disk_is_made_again_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        await journal.open_log(0)
        await trio.testing.wait_all_tasks_blocked()
    names = disk.list_files()
    assert len(names) == 2
    # The file that was ready is made again at the next start, after both are settled.
    disk.write_errors = {disk.step_count + number: errno.ENOSPC for number in range(3, 11)}
    async with open_simulated_journal(disk, SETTINGS) as journal:
        await trio.testing.wait_all_tasks_blocked()
        assert [name for name in disk.list_files() if name.endswith(".new")]
        await trio.sleep(10)
        assert len(disk.list_files()) == len(names)
        assert not [name for name in disk.list_files() if name.endswith(".new")]
        log = await journal.open_log(0)
        appends = Appends()
        for _ in range(6):
            appends.add(log, bytes(ENTRY))
        await appends.wait()
        assert appends.answers == [None] * 6


@pytest.mark.parametrize("where", ["write", "sync"])
async def test_the_journal_fails_for_ever_after_an_error(where: str) -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        other = await journal.open_log(1)
        appends = Appends()
        appends.add(log, b"before")
        await appends.wait()
        await trio.testing.wait_all_tasks_blocked()
        errors = disk.write_errors if where == "write" else disk.sync_errors
        errors[disk.step_count + (1 if where == "write" else 2)] = errno.EIO
        for index in range(5):
            appends.add(log if index % 2 else other, b"during")
        await appends.wait()
        steps = disk.step_count
        for _ in range(3):
            appends.add(log, b"after")
            await appends.wait()
        assert disk.step_count == steps, "something was written after the failure"
        assert appends.answers[0] is None
        assert len(appends.answers) == 9
        for error in appends.answers[1:]:
            assert isinstance(error, DataLogError)
            assert "Input/output error" in str(error)
        assert journal.failed.is_set()
        assert journal.failure is appends.answers[1]
        with pytest.raises(DataLogError, match="Input/output error"):
            await journal.open_log(0)
    # A container that is opened again may come here while the journal is closed.
    appends.add(other, b"closed")
    await appends.wait()
    assert appends.answers[-1] is journal.failure
    disk = disk.after_power_cut(Random(4))
    async with open_simulated_journal(disk, SETTINGS) as journal:
        assert (await read_all(await journal.open_log(0)))[:1] == [b"before"]


async def test_a_mark_that_cannot_be_written_fails_an_idle_journal(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The clock stands still until the error is there: the mark is written when time passes."""
    disk = SimulatedDisk()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        appends = Appends()
        appends.add(await journal.open_log(0), b"stored")
        await appends.wait()
        disk.write_errors[disk.step_count + 1] = errno.EIO
        with trio.fail_after(60):
            await journal.failed.wait()
        assert isinstance(journal.failure, DataLogError)
        assert appends.answers == [None]


async def test_a_failure_to_prepare_a_file_fails_the_journal() -> None:
    disk = SimulatedDisk()
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        await trio.testing.wait_all_tasks_blocked()
        appends = Appends()
        for _ in range(3):
            appends.add(log, bytes(ENTRY))
        await appends.wait()
        create_file = disk.create_file

        def broken(name: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        disk.create_file = broken  # type: ignore[assignment, method-assign]
        for _ in range(20):
            appends.add(log, bytes(ENTRY))
        await appends.wait()
        disk.create_file = create_file  # type: ignore[method-assign]
        assert isinstance(appends.answers[-1], DataLogError)
        assert journal.failed.is_set()


async def test_a_container_can_be_opened_again_while_others_append(tmp_path: Path) -> None:
    async with open_journal(tmp_path, SETTINGS) as journal:
        busy = await journal.open_log(0)
        stop = False

        async def keep_appending() -> None:
            while not stop:
                appends = Appends()
                appends.add(busy, os.urandom(9000))
                await appends.wait()
                await busy.truncate(appends.addresses[-1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_appending)
            expected = []
            for number in range(10):
                log = await journal.open_log(1)
                assert await read_all(log) == expected
                appends = Appends()
                for index in range(10):
                    expected.append(f"{number}:{index}".encode() * 50)
                    appends.add(log, expected[-1])
                await appends.wait()
            stop = True


async def test_the_real_disk_under_load_from_many_containers(tmp_path: Path) -> None:
    settings = JournalSettings(
        file_bytes=2048 * KIB, journal_bytes_max=16 * 1024 * KIB, batch_bytes_max=1024 * KIB
    )
    kept: dict[int, list[bytes]] = {}

    async def work(log: ContainerLog, container: int) -> None:
        random = Random(container)
        appends = Appends()
        kept[container] = []
        for number in range(60):
            data = random.randbytes(random.choice([0, 10, 3000, 60_000]))
            appends.add(log, data)
            kept[container].append(data)
            if number % 7 == 0:
                await appends.wait()
            if number % 20 == 10:
                await log.truncate(appends.addresses[-3])
                kept[container] = kept[container][-3:]
        await appends.wait()
        assert appends.answers == [None] * 60
        assert appends.addresses == sorted(appends.addresses)

    async with open_journal(tmp_path, settings) as journal, trio.open_nursery() as nursery:
        for container in range(8):
            nursery.start_soon(work, await journal.open_log(container), container)
    assert len(os.listdir(tmp_path)) > 3
    async with open_journal(tmp_path, settings) as journal:
        for container in range(8):
            log = await journal.open_log(container)
            found = await read_all(log)
            assert found[len(found) - len(kept[container]) :] == kept[container]


def thread_names() -> list[str]:
    """Return the names of all threads of this process, the interpreter's and others."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            names.append(path.read_text().strip())
    return names


async def test_no_thread_and_no_file_stays_behind(tmp_path: Path) -> None:
    async with open_journal(tmp_path, SETTINGS):  # the event loop's own helpers are there now
        pass
    threads = threading.active_count()
    for _ in range(3):
        async with open_journal(tmp_path, SETTINGS) as journal:
            assert "journal-writer" in thread_names()
            log = await journal.open_log(0)
            appends = Appends()
            for _ in range(10):
                appends.add(log, bytes(ENTRY))
            await appends.wait()
            await log.truncate(appends.addresses[-1])
            await read_all(await journal.open_log(0))
    assert "journal-writer" not in thread_names()
    assert threading.active_count() <= threads + 2  # the event loop's, beside those that it had
    assert not list_open_files(tmp_path)


async def test_an_error_in_a_completion_ends_the_journal_and_is_not_lost(tmp_path: Path) -> None:
    def broken(_: DataLogError | None) -> None:
        raise ZeroDivisionError("a bug in a completion")

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with open_journal(tmp_path, SETTINGS) as journal:
            log = await journal.open_log(0)
            log.append_nowait([b"x"], broken)
            await trio.sleep_forever()
    assert "journal-writer" not in thread_names()


async def test_a_journal_that_was_closed_did_not_fail(tmp_path: Path) -> None:
    async with open_journal(tmp_path, SETTINGS) as journal:
        log = await journal.open_log(0)
        await log.aclose()
    assert journal.failure is None
    assert not journal.failed.is_set()


async def test_a_cancelled_opener_leaves_a_working_journal(tmp_path: Path) -> None:
    async with open_journal(tmp_path, SETTINGS) as journal:
        with trio.CancelScope() as scope:
            scope.cancel()
            await journal.open_log(0)
        log = await journal.open_log(0)
        assert log.epoch == 2
        appends = Appends()
        appends.add(log, b"x")
        await appends.wait()
        assert appends.answers == [None]


async def test_a_file_has_room_for_all_containers_and_the_longest_entry(tmp_path: Path) -> None:
    settings = JournalSettings(
        file_bytes=512 * KIB, journal_bytes_max=8192 * KIB, batch_bytes_max=384 * KIB
    )
    count = settings.container_count_max
    assert count > 1000
    entry = bytes(settings.entry_bytes_max)
    async with open_journal(tmp_path, settings) as journal:
        async with trio.open_nursery() as nursery:
            for number in range(count - 1):
                nursery.start_soon(journal.open_log, number)
        log = await journal.open_log(count)
        last = LogAddress(0)
        for _ in range(20):
            appends = Appends()
            last = appends.add(log, entry)
            await appends.wait()
            assert appends.answers == [None]
            await log.truncate(last)
    async with open_journal(tmp_path, settings) as journal:
        assert (await journal.open_log(0)).epoch == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"file_bytes": 1000 * KIB + 1},
        {"file_bytes": 4096},
        {"journal_bytes_max": 1000 * KIB},
        {"batch_bytes_max": 100 * KIB},
        {"files_ahead": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"a journal|a batch"):
        replace(SETTINGS, **changes)


def local_file(tmp_path: Path) -> LocalFile:
    return LocalDisk(tmp_path).create_file("file")


@pytest.mark.parametrize("count", [1, 3, 1024, 1025, 5000])
def test_local_files_take_any_number_of_buffers(tmp_path: Path, count: int) -> None:
    file = local_file(tmp_path)
    buffers = [bytes([index % 251]) * (index % 90 + 1) for index in range(count)]
    file.write_durably(buffers, 10)
    joined = b"".join(buffers)
    buffer = memoryview(bytearray(len(joined) + 20))
    assert file.read_into(buffer, 10) == len(joined)
    assert bytes(buffer[: len(joined)]) == joined
    file.close()
    file.close()


@pytest.mark.parametrize("limit", [1, 100, 70_000])
def test_local_files_go_on_after_short_writes(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., int] = os.pwritev

    def short(descriptor: int, buffers: list[bytes], offset: int, flags: int = 0) -> int:
        data = b"".join(buffers)[:limit]
        return real(descriptor, [data], offset, flags)

    file = local_file(tmp_path)
    buffers = [bytes([index]) * (limit // 3 + 1) for index in range(40)]
    monkeypatch.setattr(os, "pwritev", short)
    file.write_durably(buffers, 0)
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"".join(buffers)
    file.close()


def test_local_files_do_without_synced_writes_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., int] = os.pwritev
    synced = []

    def old_kernel(descriptor: int, buffers: list[bytes], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(descriptor, buffers, offset)

    file = local_file(tmp_path)
    monkeypatch.setattr(os, "pwritev", old_kernel)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    for offset in (0, 4):
        file.write_durably([b"data"], offset)
    monkeypatch.undo()
    assert len(synced) == 2
    assert (tmp_path / "file").read_bytes() == b"datadata"
    file.close()
