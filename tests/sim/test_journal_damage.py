"""Damage to any file of a journal is told or repaired, and a journal that says nothing is found."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import trio
from simulation.journal_damage import JournalDamageError, try_damage

from segstore.errors import DataLogCorruptError
from segstore.tiers.journal import JournalSettings, files, recovery
from segstore.tiers.journal.disk import Disk
from segstore.tiers.journal.files import JournalFile
from segstore.tiers.journal.scan import FileScan, scan_file
from support.simulated.simulated_disk import SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal

KIB = 1024
SETTINGS = JournalSettings(
    file_bytes=384 * KIB, journal_bytes_max=32 * 384 * KIB, batch_bytes_max=384 * KIB
)


async def disk_with_files() -> SimulatedDisk:
    """Make a disk on which three containers have filled several files."""
    disk, random = SimulatedDisk(), Random(3)
    async with open_simulated_journal(disk, SETTINGS, random=random) as journal:
        logs = [await journal.open_log(number) for number in range(3)]
        for _ in range(40):
            durable = trio.Event()
            data = random.randbytes(random.choice([10, 1000, 90 * KIB]))
            random.choice(logs).append_nowait([data], lambda error, durable=durable: durable.set())
            await durable.wait()
    return disk


async def test_any_damage_to_a_file_in_use_is_refused_by_name_or_repaired() -> None:
    disk, random = await disk_with_files(), Random(5)
    found = Counter([await try_damage(disk, SETTINGS, random) for _ in range(80)])
    for kind in ("missing", "shorter", "with a flipped bit", "with zeros"):
        assert found[f"journal file {kind}: refused"] > 0
    assert found["journal file longer: repaired"] > 0
    assert "" not in found


@pytest.mark.parametrize("kind", ["shorter", "missing", "with a flipped bit", "with zeros"])
async def test_a_journal_that_drops_what_is_damaged_is_found(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan_what_passes(self: recovery._Recovery, generation: int) -> FileScan:
        file = self.files.get(generation)
        return scan_file(file, self.digest) if file is not None else FileScan(any_file(self))

    def any_file(self: recovery._Recovery) -> JournalFile:
        return next(iter(self.files.values()))

    def open_what_is_left(disk: Disk, name: str) -> JournalFile | None:
        try:
            return files.open_existing(disk, name)
        except DataLogCorruptError:
            return None

    disk = await disk_with_files()
    monkeypatch.setattr(recovery, "open_existing", open_what_is_left)
    monkeypatch.setattr(recovery._Recovery, "scan_needed", scan_what_passes)
    monkeypatch.setattr(recovery._Recovery, "check_positions", lambda self, recovered: None)
    for seed in range(100):
        try:
            await try_damage(disk, SETTINGS, Random(seed))
        except JournalDamageError as error:
            if "entries are lost" in str(error) and kind in str(error):
                return
    pytest.fail("no seed finds it")
