"""Journal files: how they are made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
import trio.testing

from segstore.testing.simulated_disk import SimulatedDisk, SimulatedFile
from segstore.testing.simulated_journal import open_simulated_journal
from segstore.tiers.journal import JournalSettings
from segstore.tiers.journal.disk import LocalDisk
from segstore.tiers.journal.files import make_file, open_existing
from segstore.tiers.journal.format import FILE_HEADER_BYTES, FileHeader

KIB = 1024
HEADER = FileHeader(generation=7, salt=99, file_bytes=512 * KIB)
SETTINGS = JournalSettings(
    file_bytes=512 * KIB, journal_bytes_max=8192 * KIB, batch_bytes_max=384 * KIB
)


@pytest.mark.parametrize("sync_bytes", [None, 64 * KIB])
def test_a_new_file_has_all_its_blocks_and_reads_as_zeros(
    tmp_path: Path, sync_bytes: int | None
) -> None:
    disk = LocalDisk(tmp_path)
    file = make_file(disk, HEADER, sync_bytes=sync_bytes, reuse=False)
    found = os.stat(tmp_path / file.name)
    assert found.st_size == HEADER.file_bytes
    assert found.st_blocks * 512 >= HEADER.file_bytes
    rest = memoryview(bytearray(HEADER.file_bytes - FILE_HEADER_BYTES))
    assert file.disk_file.read_into(rest, FILE_HEADER_BYTES) == len(rest)
    assert not any(rest)
    file.disk_file.close()
    opened = open_existing(disk, file.name)
    assert opened is not None
    assert opened.header == HEADER
    opened.disk_file.close()


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.mark.parametrize(("pause", "allocated"), [(0.1, True), (10.0, False)])
async def test_files_are_only_allocated_while_they_fill_quickly(
    pause: float,
    allocated: bool,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    lengths: list[int] = []
    allocate = SimulatedFile.allocate

    def note(self: SimulatedFile, length: int) -> None:
        lengths.append(length)
        allocate(self, length)

    monkeypatch.setattr(SimulatedFile, "allocate", note)
    async with open_simulated_journal(SimulatedDisk(), SETTINGS) as journal:
        log = await journal.open_log(0)
        for _ in range(20):
            log.append_nowait([bytes(300 * KIB)], lambda _: None)
            await trio.sleep(pause)
    assert bool(lengths) == allocated
    assert set(lengths) <= {SETTINGS.file_bytes}
