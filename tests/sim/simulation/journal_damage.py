"""Damage to any file of the journal, on a copy of its disk.

Owns: ``try_damage``: a bit that is flipped, bytes that are zeros, a file that is shorter, longer or
missing; and what the journal says about it.

Invariants:
1. Damage is refused with an error that names the file, or everything is read as it was written.
2. The last two files that are in use are left alone: what is wrong at the end may be what a crash
   left, and is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from segstore.errors import DataLogError, leaf_errors
from segstore.tiers.api import DurableDataLog
from segstore.tiers.journal import JournalSettings
from segstore.tiers.journal.files import open_existing, parse_name
from segstore.tiers.journal.scan import scan_file
from support.simulated.simulated_disk import SECTOR_BYTES, SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal

Entries = dict[int, list[tuple[int, bytes]]]
"""The entries of each container, with their positions."""


class JournalDamageError(AssertionError):
    """Damage was neither refused by name nor repaired."""


async def try_damage(disk: SimulatedDisk, settings: JournalSettings, random: Random) -> str:
    """Damage a file of a copy, and open the journal; return the damage and its effect.

    Empty where no file can be damaged, or where the journal is damaged already. Raises
    ``JournalDamageError``.
    """
    right: Entries | None = None
    try:
        right = await _read_all(disk.after_kill(), settings)
    except* DataLogError:
        pass  # the next life finds that out, and tells what it is
    names = [] if right is None else _complete_files(disk)[:-2]
    if not names:
        return ""
    name = random.choice(names)
    kind, damage = random.choice(DAMAGES)
    copy = disk.after_kill()
    damage(copy, name, random)
    messages: list[str] = []
    found: Entries = {}
    try:
        found = await _read_all(copy, settings)
    except* DataLogError as group:
        messages = [str(error) for error in leaf_errors(group)]
    if messages and not any(name in message for message in messages):
        raise JournalDamageError(f"{name} {kind}: the error names another: {messages}")
    if not messages and found != right:
        raise JournalDamageError(f"{name} {kind}: entries are lost or others, and nobody says so")
    return f"journal file {kind}: {'refused' if messages else 'repaired'}"


def _complete_files(disk: SimulatedDisk) -> list[str]:
    """Return the files that are in use, in order."""
    used = []
    for name in disk.list_files():
        parsed = parse_name(name)
        if parsed is None or parsed[1]:
            continue
        file = open_existing(disk, name)
        if file is not None and scan_file(file).next_batch_number > 0:
            used.append(name)
    return used


async def _read_all(disk: SimulatedDisk, settings: JournalSettings) -> Entries:
    entries: Entries = {}
    async with open_simulated_journal(disk, settings) as journal:
        for container_id in sorted(journal._logs):
            log: DurableDataLog = await journal.open_log(container_id)
            entries[container_id] = [
                (entry.address.position, bytes(entry.data)) async for entry in log.read()
            ]
    return entries


def _flip_bit(disk: SimulatedDisk, name: str, random: Random) -> None:
    disk.flip_bit(name, random.randrange(len(disk.content(name))), random.randrange(8))


def _flip_early_bit(disk: SimulatedDisk, name: str, random: Random) -> None:
    """Flip a bit in the first sectors, where headers are, and most files have something."""
    disk.flip_bit(name, random.randrange(2 * SECTOR_BYTES), random.randrange(8))


def _zero(disk: SimulatedDisk, name: str, random: Random) -> None:
    length = len(disk.content(name))
    start = random.randrange(length)
    disk.overwrite(name, start, bytes(min(length - start, random.choice([1, SECTOR_BYTES, 65536]))))


def _shorten(disk: SimulatedDisk, name: str, random: Random) -> None:
    disk.cut(name, random.randrange(len(disk.content(name))))


def _lengthen(disk: SimulatedDisk, name: str, random: Random) -> None:
    disk.overwrite(name, len(disk.content(name)), random.randbytes(random.choice([1, 5000])))


def _lose(disk: SimulatedDisk, name: str, random: Random) -> None:
    disk.forget(name)


DAMAGES: list[tuple[str, Callable[[SimulatedDisk, str, Random], None]]] = [
    ("with a flipped bit", _flip_bit),
    ("with a flipped bit", _flip_early_bit),
    ("with zeros", _zero),
    ("shorter", _shorten),
    ("longer", _lengthen),
    ("missing", _lose),
]
