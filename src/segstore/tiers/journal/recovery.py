"""Opens the journal in a directory: finds the needed files, checks them, and finds the place of the
next batch.

Owns: ``recover``, and the decision whether an invalid batch is an interrupted last write or damage.
The newest file with a valid first batch has the state, which names the needed files.

Example: a file has batch 1 at 4,096, batch 2 at 4,608, batch 3 at 5,120 with 1,448 bytes; a bit of
batch 3 is flipped, so its checksum is wrong::

    nothing after batch 3                            it was torn: batch 2 is the last one, and the
                                                      next batch gets number 3, again at 5,120
    a mark at 6,656: batch 4, "batch 3 was durable"   damage: ``DataLogCorruptError`` names the file
                                                      and offset 5,120

Invariants:
1. When a needed file is missing, cut off or has a damaged batch, the recovery raises
   ``DataLogCorruptError`` with the file's name. Held by ``test_a_missing_file_is_reported`` and
   ``test_a_file_that_was_cut_is_reported``.
2. When the last batch is incomplete and nothing proves that it was durable, the recovery drops it
   and keeps all batches before. Held by
   ``test_a_tail_torn_at_any_byte_recovers_to_the_last_full_batch``.
3. When a later batch, an END record, a mark or a newer file proves that a damaged batch was
   durable, the recovery raises ``DataLogCorruptError`` with file and offset. Held by
   ``test_a_flipped_bit_in_any_durable_batch_is_reported_with_file_and_offset`` and
   ``test_the_last_batch_is_protected_as_soon_as_the_journal_is_idle``.
4. When notes about files contradict the files, the recovery reads the files instead and succeeds.
   Held by ``test_a_note_with_a_right_sum_that_cannot_be_true_is_like_none``.
5. When a killed process left a batch in the page cache that a failed sync never brought to the
   disk, the batch is not recovered. Held by
   ``test_a_batch_that_a_failed_sync_left_in_the_kernel_is_not_recovered``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from segstore.errors import DataLogCorruptError, DataLogError
from segstore.tiers.journal.contents import NotedContents
from segstore.tiers.journal.disk import Disk
from segstore.tiers.journal.files import (
    IDENTITY_NAMES,
    JournalFile,
    file_length,
    journal_name,
    open_existing,
    parse_name,
    whole_batches,
)
from segstore.tiers.journal.format import (
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    decode_batch_header,
)
from segstore.tiers.journal.log_reader import KeptDigests
from segstore.tiers.journal.scan import (
    FileScan,
    Window,
    check_indexes,
    find_later_batch,
    scan_file,
)
from segstore.tiers.journal.state import JournalState
from segstore.tiers.journal.writer import Tail

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Recovered:
    """The result of a recovery."""

    state: JournalState
    tail: Tail
    scans: dict[int, FileScan] = field(default_factory=dict)
    """The needed files, by generation in ascending order."""
    ready: list[JournalFile] = field(default_factory=list)
    """Files that follow the tail, ready to be written."""
    freed: list[str] = field(default_factory=list)
    """Names of files that are not needed."""
    next_generation: int = 1
    lengths: dict[str, int] = field(default_factory=dict)
    """The length of each file, by name; in bytes."""


def recover(
    disk: Disk,
    *,
    digest: KeptDigests | None = None,
    contents: NotedContents | None = None,
    thread_count: int = 1,
) -> Recovered:
    """Read the journal in a directory. Blocks. Raises ``DataLogCorruptError`` for damage,
    ``DataLogError`` when a file cannot be read.

    With ``digest`` the scans have the digests of the entries. Complete files with a note in
    ``contents`` are not read.
    """
    try:
        return _Recovery(disk, digest, contents, thread_count).run()
    except OSError as error:
        raise DataLogError(f"the journal cannot be read: {error}") from error


class _Recovery:
    """One recovery; ``files`` are the open files, by generation."""

    def __init__(
        self,
        disk: Disk,
        digest: KeptDigests | None,
        contents: NotedContents | None,
        thread_count: int,
    ) -> None:
        self.disk = disk
        self.digest = digest
        self.contents = contents
        self.noted: set[int] = set()
        self.thread_count = thread_count
        self.files: dict[int, JournalFile] = {}
        self.unreadable: dict[int, str] = {}
        self.generations: list[int] = []

    def run(self) -> Recovered:
        self.open_files()
        state = JournalState()
        newest = self.scan_newest(state)
        if newest is None:
            return self.empty_journal(state)
        recovered = Recovered(state, self.tail_of(newest))
        generation = newest.file.generation
        if newest.following_generation is None:
            self.check_torn(newest)
        else:
            recovered.ready.append(self.following_file(newest))
            state.live.add(generation)
        self.scan_all_needed(sorted(state.live - {generation}), recovered)
        recovered.scans[generation] = newest
        self.check_notes(recovered)
        self.check_positions(recovered)
        self.release_others(recovered)
        return recovered

    def open_files(self) -> None:
        for name in self.disk.list_files():
            if name in IDENTITY_NAMES:
                continue
            parsed = parse_name(name)
            if parsed is None:
                raise DataLogError(f"{name} is not a journal file: the directory is not a journal")
            generation, being_made = parsed
            self.generations.append(generation)
            if being_made:
                self.disk.remove(name)
                continue
            file = open_existing(self.disk, name)
            if file is None:
                self.unreadable[generation] = name
            else:
                file.disk_file.settle()
                self.files[generation] = file

    def scan_newest(self, state: JournalState) -> FileScan | None:
        """Scan the newest file with a valid first batch, and apply its records to ``state``."""
        for generation in sorted(self.files, reverse=True):
            scan = scan_file(self.files[generation], self.digest)
            if scan.next_batch_number > 0:
                state.apply_scan(scan)
                return scan
        return None

    def empty_journal(self, state: JournalState) -> Recovered:
        """Return the result for a journal without a valid batch. Raises ``DataLogCorruptError`` if
        a file may have had one."""
        for generation in sorted(self.files):
            self.check_torn(FileScan(self.files[generation], next_batch_number=1))
        for name in self.unreadable.values():
            raise DataLogCorruptError(f"journal file {name}, offset 0: the file header is damaged")
        recovered = Recovered(state, Tail(None, 0, 1))
        self.release_others(recovered)
        return recovered

    def tail_of(self, newest: FileScan) -> Tail:
        if newest.following_generation is not None:
            return Tail(None, 0, newest.next_batch_number)
        return Tail(newest.file, newest.end_offset, newest.next_batch_number)

    def check_torn(self, scan: FileScan) -> None:
        """Raise ``DataLogCorruptError`` if the scan of the journal's last file ended at damage that
        no crash explains."""
        if scan.marked:
            return
        file, offset = scan.file, scan.end_offset
        later = find_later_batch(scan)
        if later is not None:
            raise DataLogCorruptError(
                f"journal file {file.name}, offset {offset}: the batch is damaged; it was durable"
                f" before the batch at offset {later} was written"
            )
        for generation in sorted(self.files):
            if generation > file.generation and self.has_batch(self.files[generation]):
                raise DataLogCorruptError(
                    f"journal file {file.name}, offset {offset}: the batch is damaged;"
                    f" {journal_name(generation)} was written after it"
                )

    def has_batch(self, file: JournalFile) -> bool:
        window = Window(file.disk_file, end=FILE_HEADER_BYTES + BATCH_HEADER_BYTES)
        data = window.view(FILE_HEADER_BYTES, BATCH_HEADER_BYTES)
        header = file.header
        batch = decode_batch_header(data, generation=header.generation, salt=header.salt)
        return batch is not None

    def following_file(self, newest: FileScan) -> JournalFile:
        """Return the file that the END record of the newest file names. None of the file's batches
        was ever durable."""
        generation = newest.following_generation
        assert generation is not None
        file = self.existing(generation)
        self.check_torn(FileScan(file, next_batch_number=newest.next_batch_number))
        return file

    def scan_all_needed(self, generations: list[int], recovered: Recovered) -> None:
        """Scan files, several at the same time: while one is checked another one is read."""
        if self.thread_count == 1 or len(generations) < 2:
            scans = [self.scan_needed(generation) for generation in generations]
        else:
            with ThreadPoolExecutor(self.thread_count, "segstore-scan") as threads:
                scans = list(threads.map(self.scan_needed, generations))
        recovered.scans.update(zip(generations, scans, strict=True))

    def scan_needed(self, generation: int) -> FileScan:
        """Return the scan of a file, which must be valid up to its END record. If it has a note,
        the note is used instead."""
        file = self.existing(generation)
        if self.contents is not None and self.digest is not None:
            noted = self.contents.read(file, self.digest)
            if noted is not None:
                self.noted.add(generation)
                return noted
        scan = scan_file(file, self.digest)
        if scan.following_generation is None:
            raise DataLogCorruptError(
                f"journal file {file.name}, offset {scan.end_offset}: the batch is damaged; the"
                " file was complete before a newer one was written"
            )
        return scan

    def existing(self, generation: int) -> JournalFile:
        if generation in self.unreadable:
            name = self.unreadable[generation]
            raise DataLogCorruptError(f"journal file {name}, offset 0: the file header is damaged")
        if generation not in self.files:
            name = journal_name(generation)
            raise DataLogCorruptError(f"journal file {name}, offset 0: the file is missing")
        return self.files[generation]

    def check_notes(self, recovered: Recovered) -> None:
        """Check the notes that were used against the state. If they contradict it, read their files
        after all."""
        containers = recovered.state.containers
        try:
            for generation in self.noted:
                for container_id, index in recovered.scans[generation].indexes.items():
                    container = containers.get(container_id)
                    if container is None or index.end_position > container.next_position:
                        raise DataLogCorruptError(
                            f"the note about {journal_name(generation)} has too much of container"
                            f" {container_id}"
                        )
            if self.noted:
                self.check_positions(recovered)
        except DataLogCorruptError as error:
            _log.warning("notes about journal files are not used", error=str(error))
            noted, self.noted, self.contents = sorted(self.noted), set(), None
            self.scan_all_needed(noted, recovered)

    def check_positions(self, recovered: Recovered) -> None:
        """Check that each needed entry of each container exists exactly once. Raises
        ``DataLogCorruptError``."""
        for container_id, container in recovered.state.containers.items():
            indexes = {
                generation: scan.indexes[container_id]
                for generation, scan in recovered.scans.items()
                if container_id in scan.indexes
            }
            check_indexes(
                container_id, indexes, start=container.first_position, end=container.next_position
            )

    def release_others(self, recovered: Recovered) -> None:
        """Close the files that will not be written, and record those that are not needed as
        free."""
        written_on = [recovered.tail.file, *recovered.ready]
        lengths = recovered.lengths
        for generation, file in self.files.items():
            lengths[file.name] = whole_batches(file.disk_file.length())
            if file in written_on:
                continue
            file.disk_file.close()
            if generation not in recovered.scans:
                recovered.freed.append(file.name)
        for name in self.unreadable.values():
            recovered.freed.append(name)
            lengths[name] = file_length(self.disk, name)
        recovered.next_generation = max(self.generations, default=0) + 1
        _log.info(
            "journal recovered",
            file_count=len(self.generations),
            needed_count=len(recovered.scans),
            noted_count=len(self.noted),
            container_count=len(recovered.state.containers),
        )
