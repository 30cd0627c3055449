"""A store accepts its own tiers alone, and leaves others untouched."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from segstore.errors import (
    DataDirectoryError,
    DataLogError,
    FencedOutError,
    IdentityError,
    IdentityProblem,
    SegmentExistsError,
    StorageAbsentError,
    StorageError,
    StorageUnreachableError,
)
from segstore.ownership import claims, journal_identity
from segstore.ownership.claims import owned
from segstore.ownership.data_directory import VERSION_FILE, DataDirectory, StoreState
from segstore.ownership.journal_identity import read_journal_identity, write_journal_identity
from segstore.ownership.tier_two_identity import STORE_PREFIX, check_tier_two, identity_name
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.process.registry import OpenContainer
from segstore.process.tier_two import open_storage
from segstore.tiers.api import Buffer, Check, ChunkInfo, ChunkStorage
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.memory import MemoryChunkStorage
from support.local_tiers import read_all

MIB = 1024 * 1024
SEGMENT = "scope/stream/0.#epoch.0"


class Place:
    """A data directory, and a tier 2 beside it."""

    def __init__(self, path: Path, storage: Path | None = None) -> None:
        self.data = path / "data"
        self.storage = storage or path / "tier-2"

    @property
    def journal(self) -> Path:
        return self.data / "journal-0"

    async def start(
        self,
        text: bytes = b"",
        *,
        chunks: ChunkStorage | None = None,
        containers: int = 1,
        segment: str = SEGMENT,
    ) -> bytes:
        """Start the store and stop it; it appends ``text`` meanwhile. Returns all that it has."""
        config = SegmentStoreConfig(
            data_dir=self.data,
            storage_dir=self.storage,
            container_count=containers,
            cache_bytes_max=8 * MIB,
            journal_file_bytes=MIB,
            journal_bytes_max=64 * MIB,
        )
        async with (
            open_containers(config, chunk_storage=chunks) as opener,
            opener(0) as container,
        ):
            with suppress(SegmentExistsError):
                await container.create_segment(segment)
            if text:
                await container.append(segment, text)
            return await read_all(container, segment)

    async def refused(self, problem: IdentityProblem, *sentences: str, **options: Any) -> None:
        """See that a start is refused, and changes nothing."""
        before = everything_in(self.data, self.storage)
        with pytest.raises(IdentityError) as caught:
            await self.start(b"never", **options)
        assert caught.value.problem is problem, caught.value
        for sentence in sentences:
            assert sentence in str(caught.value)
        assert everything_in(self.data, self.storage) == before

    async def fail_to_claim(self, chunks: LosingChunks) -> None:
        """Start the store while the claim does not come to tier 2."""
        chunks.loses = True
        with pytest.raises(StorageUnreachableError):
            await self.start(chunks=chunks)
        chunks.loses = False

    async def refused_when_new(self, sentence: str) -> None:
        """Check the same for a store that has nothing yet: it makes its version file."""
        before = everything_in(self.storage)
        for _ in range(2):
            with pytest.raises(IdentityError, match=re.escape(sentence)) as caught:
                await self.start(b"never")
            assert caught.value.problem is IdentityProblem.FOREIGN
        assert everything_in(self.storage) == before
        assert not list(self.data.glob("journal-0/*.journal"))


def everything_in(*paths: Path) -> dict[Path, bytes | None]:
    """Return all files, without locks."""
    return {
        each: each.read_bytes() if each.is_file() else None
        for path in paths
        for each in [path, *path.rglob("*")]
        if each.exists() and each.suffix != ".lock"
    }


def copy_tree(source: Path, target: Path) -> None:
    """Make other files with the same bytes; those that are renamed meanwhile may be missing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(shutil.Error):
        shutil.copytree(source, target, copy_function=shutil.copy)


def replace_tree(source: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.move(source, target)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A patch that makes stores end like a killed process from now on: nobody gives a claim
    back."""

    async def do_nothing(_: object) -> None:
        await trio.lowlevel.checkpoint()

    return lambda: monkeypatch.setattr(claims.Ownership, "release", do_nothing)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# ---- One store -----------------------------------------------------------------------------------


async def test_every_tier_gets_an_identity_once(place: Place) -> None:
    assert await place.start(b"one") == b"one"
    directory = DataDirectory.open(place.data, container_count=1)
    assert directory.state is StoreState.COMPLETE
    assert directory.tier_2 == str(place.storage)
    found = read_journal_identity(place.journal)
    assert found is not None
    assert (found.store_id, found.journal, found.turn) == (directory.store_id, 0, 1)
    assert await place.start(b"two") == b"onetwo"
    assert DataDirectory.open(place.data, container_count=1) == directory
    chunks = sorted(each.name for each in (place.storage / "_system").iterdir())
    ours = [name for name in chunks if name.startswith("store$")]
    assert len(ours) == 2
    assert ours[0].startswith("store$claim-0-0000000002-")
    assert ours[1] == f"store$identity-{directory.store_id}.chunk"


async def test_a_killed_store_starts_again_at_once(
    place: Place, killed: Callable[[], None]
) -> None:
    killed()
    for number in range(1, 4):
        assert await place.start(b"x") == b"x" * number


async def test_tier_2_may_be_moved(place: Place, tmp_path: Path) -> None:
    await place.start(b"one")
    place.storage.rename(tmp_path / "elsewhere")
    await place.refused(IdentityProblem.MISSING, str(place.storage))
    place.storage = tmp_path / "elsewhere"
    assert await place.start() == b"one"
    assert DataDirectory.open(place.data, container_count=1).tier_2 == str(place.storage)


# ---- Tier 2 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [False, True])
async def test_a_tier_2_that_is_not_mounted_is_refused(
    place: Place, tmp_path: Path, exists: bool
) -> None:
    await place.start(b"one")
    place.storage.rename(tmp_path / "away")
    if exists:
        place.storage.mkdir()
    for _ in range(2):
        store_id = DataDirectory.open(place.data, container_count=1).store_id
        await place.refused(
            IdentityProblem.MISSING, store_id, str(place.storage), "mount what is missing"
        )
    if exists:
        place.storage.rmdir()
    (tmp_path / "away").rename(place.storage)
    assert await place.start(b"two") == b"onetwo"


async def test_a_tier_2_that_goes_away_meanwhile_is_not_replaced(
    place: Place, tmp_path: Path
) -> None:
    config = SegmentStoreConfig(
        data_dir=place.data, storage_dir=place.storage, container_count=1, cache_bytes_max=8 * MIB
    )
    away = tmp_path / "away"
    async with open_containers(config) as opener, opener(0) as container:
        await container.create_segment(SEGMENT)
        await container.append(SEGMENT, b"one")
        await container.flush()  # type: ignore[attr-defined]
        place.storage.rename(away)
        place.storage.mkdir()
        for number in range(3):
            await container.create_segment(f"other/{number}")
            await container.append(f"other/{number}", b"new")
        await container.append(SEGMENT, b"two")
        await container.flush()  # type: ignore[attr-defined]
    assert list(place.storage.iterdir()) == []
    place.storage.rmdir()
    away.rename(place.storage)
    assert await place.start() == b"onetwo"
    assert await place.start(segment="other/2") == b"new"


async def test_doubts_about_files_outlive_a_tier_2_that_is_not_mounted(
    place: Place, tmp_path: Path
) -> None:
    await place.start(b"one")
    doubts = place.data / "tier-2-doubts.txt"
    doubts.write_text("0 some/chunk.chunk .\n")
    place.storage.rename(tmp_path / "away")
    await place.refused(IdentityProblem.MISSING)
    assert doubts.read_text() == "0 some/chunk.chunk .\n"


async def test_another_store_s_tier_2_is_refused(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other")
    await other.start(b"other")
    await place.start(b"one")
    other_id = DataDirectory.open(other.data, container_count=1).store_id
    await Place(tmp_path, other.storage).refused(IdentityProblem.FOREIGN, other_id)
    # A new store gets nothing that is somebody's.
    new = Place(tmp_path / "new", other.storage)
    await new.refused_when_new(other_id)
    assert await other.start() == b"other"


async def test_a_new_store_does_not_take_chunks_without_an_identity(
    place: Place, tmp_path: Path
) -> None:
    await place.start(b"one")
    [identity] = (place.storage / "_system").glob("store$identity-*")
    identity.rename(tmp_path / "aside")
    await Place(tmp_path / "new", place.storage).refused_when_new("has chunks already")
    (tmp_path / "aside").rename(identity)
    assert await place.start() == b"one"


async def test_an_older_state_of_tier_2_is_refused(place: Place, tmp_path: Path) -> None:
    await place.start(b"one")
    copy_tree(place.storage, tmp_path / "backup")
    await place.start(b"two")
    place.storage.rename(tmp_path / "right")
    (tmp_path / "backup").rename(place.storage)
    await place.refused(IdentityProblem.OLDER, "has no claim since number 1, and had number 2")
    replace_tree(tmp_path / "right", place.storage)
    assert await place.start() == b"onetwo"


async def test_a_tier_2_from_before_the_last_stop_is_refused(place: Place, tmp_path: Path) -> None:
    config = SegmentStoreConfig(
        data_dir=place.data, storage_dir=place.storage, container_count=1, cache_bytes_max=8 * MIB
    )
    async with open_containers(config):
        copy_tree(place.storage, tmp_path / "backup")
    place.storage.rename(tmp_path / "right")
    (tmp_path / "backup").rename(place.storage)
    await place.refused(IdentityProblem.OLDER, "it was copied before the last stop of the store")
    replace_tree(tmp_path / "right", place.storage)
    assert await place.start(b"one") == b"one"


async def test_a_tier_2_in_memory_ends_with_its_process(place: Place) -> None:
    chunks = MemoryChunkStorage()
    await place.start(b"one", chunks=chunks)
    assert await place.start(b"two", chunks=chunks) == b"onetwo"
    await place.refused(IdentityProblem.MISSING, "MemoryChunkStorage", chunks=MemoryChunkStorage())


async def test_a_tier_2_that_cannot_be_listed_is_told(place: Place) -> None:
    place.storage.write_text("not a directory")
    with pytest.raises(StorageError, match="tier 2 in"):
        await place.start()
    place.storage.unlink()
    await place.start(b"one")
    shutil.rmtree(place.storage / "_system")
    (place.storage / "_system").write_text("not a directory")
    with pytest.raises(StorageUnreachableError, match=r"tier 2 in .* cannot be used"):
        await place.start()


# ---- Journals ------------------------------------------------------------------------------------


async def test_a_journal_that_is_gone_is_refused(place: Place, tmp_path: Path) -> None:
    await place.start(b"one")
    place.journal.rename(tmp_path / "away")
    await place.refused(IdentityProblem.MISSING, str(place.journal), "it does not exist")
    place.journal.mkdir()
    await place.refused(IdentityProblem.MISSING, str(place.journal), "identity.toml is not there")
    replace_tree(tmp_path / "away", place.journal)
    assert await place.start() == b"one"


class LosingChunks(MemoryChunkStorage):
    """Chunks of which claims that are written get lost, or come late."""

    def __init__(self) -> None:
        super().__init__()
        self.loses = False
        self.lost: list[str] = []
        self.late: str | None = None
        """Comes when the next claim is written."""

    async def write(
        self, name: str, *, offset: int, data: Sequence[Buffer], meanwhile: Check | None = None
    ) -> None:
        if "store$claim" in name and self.loses:
            self.lost.append(name)
            raise StorageUnreachableError("the claim is lost")
        if "store$claim" in name and self.late is not None:
            late, self.late = self.late, None
            await super().write(late, offset=0, data=[b"late\n"])
        await super().write(name, offset=offset, data=data, meanwhile=meanwhile)


async def test_another_journal_is_refused(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other")
    await other.start(b"other")
    await place.start(b"one")
    place.journal.rename(tmp_path / "away")
    copy_tree(other.journal, place.journal)
    store_id = DataDirectory.open(other.data, container_count=1).store_id
    await place.refused(IdentityProblem.FOREIGN, f"which has journal 0 of store {store_id}")
    replace_tree(tmp_path / "away", place.journal)
    assert await place.start() == b"one"


async def test_an_older_state_of_a_journal_is_refused(place: Place, tmp_path: Path) -> None:
    await place.start(b"one")
    copy_tree(place.journal, tmp_path / "backup")
    await place.start(b"two")
    place.journal.rename(tmp_path / "right")
    (tmp_path / "backup").rename(place.journal)
    await place.refused(IdentityProblem.CLAIMED, "is older than tier 2", str(place.data))
    replace_tree(tmp_path / "right", place.journal)
    assert await place.start() == b"onetwo"


async def test_a_backup_from_before_the_first_claim_is_refused(
    place: Place, tmp_path: Path, killed: Callable[[], None]
) -> None:
    """The backup knows the claim of a start that failed, and a later start has served."""
    chunks = LosingChunks()
    await place.fail_to_claim(chunks)
    shutil.copytree(place.journal, tmp_path / "backup", copy_function=shutil.copy2)
    killed()
    assert await place.start(b"one", chunks=chunks) == b"one"
    replace_tree(tmp_path / "backup", place.journal)
    await place.refused(IdentityProblem.CLAIMED, "is older than tier 2", chunks=chunks)


@pytest.mark.parametrize("when", ["at the next start", "during the next start", "afterwards"])
async def test_a_claim_that_comes_late_stops_no_start(
    place: Place, when: str, killed: Callable[[], None]
) -> None:
    chunks = LosingChunks()
    for _ in range(3):
        await place.fail_to_claim(chunks)
    late = chunks.lost.pop(1)
    killed()
    if when == "at the next start":
        await chunks.write(late, offset=0, data=[b"late\n"])
    elif when == "during the next start":
        chunks.late = late
    assert await place.start(b"one", chunks=chunks) == b"one"
    if when == "afterwards":
        await chunks.write(late, offset=0, data=[b"late\n"])
    for number in range(2, 4):
        assert await place.start(b"x", chunks=chunks) == b"one" + b"x" * (number - 1)


@pytest.mark.parametrize(
    ("name", "number", "containers"),
    [("journal_count", 2, 1), ("container_count", 2, 2)],
)
async def test_counts_that_were_changed_by_hand_are_refused(
    place: Place, name: str, number: int, containers: int
) -> None:
    await place.start(b"one")
    version_file = place.data / VERSION_FILE
    right = version_file.read_text()
    version_file.write_text(right.replace(f"{name} = 1", f"{name} = {number}"))
    await place.refused(
        IdentityProblem.CHANGED,
        f"says {name} = {number}",
        f"write {name} = 1 there again",
        containers=containers,
    )
    version_file.write_text(right)
    assert await place.start() == b"one"


@pytest.mark.parametrize(
    "text", ["", "format_version = 2\n", "format_version = ", 'format_version = 1\nturn = "x"\n']
)
async def test_a_damaged_identity_of_a_journal_is_told(place: Place, text: str) -> None:
    await place.start(b"one")
    file = place.journal / "identity.toml"
    file.write_text(text)
    with pytest.raises(
        DataDirectoryError, match=r"journal-0/identity\.toml (is damaged|cannot be)"
    ):
        await place.start()
    assert file.read_text() == text


# ---- Copies --------------------------------------------------------------------------------------


async def test_a_copy_of_a_running_store_is_refused(place: Place, tmp_path: Path) -> None:
    copy = Place(tmp_path / "copy", place.storage)
    await place.start(b"one")
    config = SegmentStoreConfig(
        data_dir=place.data, storage_dir=place.storage, container_count=1, cache_bytes_max=8 * MIB
    )
    async with open_containers(config):
        copy_tree(place.data, copy.data)
        await copy.refused(
            IdentityProblem.CLAIMED, "may use it still", f'"{place.data}"', f"process {os.getpid()}"
        )
    # Nor later: the journal went on where it was copied.
    await copy.refused(IdentityProblem.CLAIMED, "may use it still")
    assert await place.start(b"two") == b"onetwo"
    await copy.refused(IdentityProblem.CLAIMED, "is older than tier 2")
    assert await place.start() == b"onetwo"


async def test_a_copy_does_not_take_the_originals_claim_for_one_that_it_tried(
    place: Place, tmp_path: Path
) -> None:
    await place.start(b"one")
    # A start was killed when the journal had the name of its claim, and tier 2 had it not.
    identity = read_journal_identity(place.journal)
    assert identity is not None
    tried = replace(identity, next_owner="ab" * 8, is_released=False)
    write_journal_identity(place.journal, tried)
    copy = Place(tmp_path / "copy", place.storage)
    copy_tree(place.data, copy.data)
    config = SegmentStoreConfig(
        data_dir=place.data, storage_dir=place.storage, container_count=1, cache_bytes_max=8 * MIB
    )
    async with open_containers(config):
        [claim] = place.storage.rglob("store*claim-0-*")
        ours = "ab" * 7 + "ac"
        assert ours in claim.name
        claim.with_name(claim.name.replace(ours, "f" * 16)).write_text("a refused start")
        await copy.refused(IdentityProblem.CLAIMED, "is older than tier 2", "a refused start")
    assert await place.start(b"two") == b"onetwo"


async def test_of_two_copies_of_a_stopped_store_the_first_is_taken(
    place: Place, tmp_path: Path
) -> None:
    await place.start(b"one")
    copy = Place(tmp_path / "copy", place.storage)
    copy_tree(place.data, copy.data)
    assert await copy.start(b"two") == b"onetwo"
    await place.refused(IdentityProblem.CLAIMED, "is older than tier 2", f'"{copy.data}"')
    assert await copy.start() == b"onetwo"


async def test_a_killed_store_that_is_moved_has_to_end_where_it_was(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: Callable[[], None]
) -> None:
    killed()
    await place.start(b"one")
    copy = Place(tmp_path / "copy", place.storage)
    copy_tree(place.data, copy.data)
    await copy.refused(IdentityProblem.CLAIMED, "start and stop the store where it was")
    monkeypatch.undo()
    await place.start()
    shutil.rmtree(copy.data)
    copy_tree(place.data, copy.data)
    assert await copy.start() == b"one"


async def renew(place: Place) -> None:
    """Renew the journal's identity, as a recovery does that knows it is the right journal."""
    config = SegmentStoreConfig(data_dir=place.data, storage_dir=place.storage, container_count=1)
    directory = DataDirectory.open(place.data, container_count=1)
    with directory.lock_journal(0) as path:
        async with open_storage(config, directory) as tier:
            found = await check_tier_two(directory, tier)
            renewed = claims.renew_journal_identity(directory, 0, found)
            write_journal_identity(path, renewed)


async def test_a_recovery_renews_the_identity_of_a_journal(
    place: Place, tmp_path: Path, killed: Callable[[], None]
) -> None:
    killed()
    await place.start(b"one")
    moved = Place(tmp_path / "moved", place.storage)
    copy_tree(place.data, moved.data)
    await moved.refused(IdentityProblem.CLAIMED)
    await renew(moved)
    assert await moved.start(b"two") == b"onetwo"
    # From now on this one is the store.
    await place.refused(IdentityProblem.CLAIMED, "is older than tier 2")
    (moved.journal / "identity.toml").unlink()
    await moved.refused(IdentityProblem.MISSING)
    await renew(moved)
    assert await moved.start() == b"onetwo"
    moved.storage = tmp_path / "nothing"
    with pytest.raises(IdentityError, match="it is not there"):
        await renew(moved)


# ---- At the same time ----------------------------------------------------------------------------


class Meeting:
    """A point that nobody passes before ``count`` tasks have arrived."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._met = trio.Event()

    async def arrive(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._met.set()
        await self._met.wait()


class MeetingStorage:
    """Storage that lets the first ``count`` writes of claims or identities begin and end together.

    Each start has looked at tier 2 before the first of them writes: a start that is slower would be
    refused otherwise, and the other one would wait for its write for ever.
    """

    def __init__(self, chunks: ChunkStorage, kind: str, count: int) -> None:
        self._chunks = chunks
        self._kind = kind
        self._before = Meeting(count)
        self._after = Meeting(count)

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        meets = name.startswith(STORE_PREFIX + self._kind) and offset == 0
        if meets:
            await self._before.arrive()
        await self._chunks.write(name, offset=offset, data=data, meanwhile=meanwhile)
        if meets:
            await self._after.arrive()

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> Buffer:
        return await self._chunks.read(name, offset=offset, length=length, check=check)

    async def info(self, name: str) -> ChunkInfo:
        return await self._chunks.info(name)

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        return await self._chunks.lengths(names)

    async def delete(self, name: str) -> None:
        await self._chunks.delete(name)

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        return await self._chunks.list_chunks(prefix)


async def start_together(places: list[Place], chunks: Callable[[], ChunkStorage]) -> list[Place]:
    """Start stores at the same time; return those that served."""
    served: list[Place] = []

    async def start(place: Place) -> None:
        with suppress(IdentityError):
            await place.start(place.data.parent.name.encode(), chunks=chunks())
            served.append(place)

    async with trio.open_nursery() as nursery:
        for place in places:
            nursery.start_soon(start, place)
    return served


@pytest.mark.parametrize("how", ["taken over", "emptied"])
async def test_an_owner_that_lost_tier_2_keeps_its_log_and_ends(place: Place, how: str) -> None:
    config = SegmentStoreConfig(
        data_dir=place.data, storage_dir=place.storage, container_count=1, cache_bytes_max=8 * MIB
    )

    async def serve(opener: OpenContainer) -> None:
        async with opener(0) as container:
            log = container.parts.log  # type: ignore[attr-defined]
            await container.create_segment(SEGMENT)
            await container.append(SEGMENT, bytes(100_000))
            await container.flush()  # type: ignore[attr-defined]
            before = log.bytes_since_truncation
            if how == "emptied":
                shutil.rmtree(place.storage)
                place.storage.mkdir()
            else:
                [claim] = place.storage.rglob("store*claim-0-*")
                number = claim.name.rpartition("-")[0].replace("0001", "0002")
                claim.with_name(f"{number}-{'5' * 16}.chunk").write_text("another store")
            try:
                await container.checkpoint()  # type: ignore[attr-defined]
                await trio.sleep_forever()
            finally:
                assert log.bytes_since_truncation >= before

    async def reopen(opener: OpenContainer) -> None:
        async with opener(0):
            pytest.fail("opened on a tier 2 that is another's")

    kind = FencedOutError if how == "taken over" else StorageAbsentError
    fenced = pytest.RaisesGroup(
        pytest.RaisesExc(kind, match=how), flatten_subgroups=True, allow_unwrapped=True
    )
    with trio.fail_after(30):
        async with open_containers(config) as opener:
            with fenced:
                await serve(opener)
            with fenced:
                await reopen(opener)


async def test_a_tier_2_that_lists_earlier_claims_alone_was_not_taken_over(place: Place) -> None:
    await place.start(b"one")
    chunks = FilesystemChunkStorage(place.storage)
    [earlier] = [each for each in await chunks.list_chunks(STORE_PREFIX) if "claim" in each.name]
    listed = chunks.list_chunks
    is_behind = False

    async def list_chunks(prefix: str) -> list[ChunkInfo]:
        found = [each for each in await listed(prefix) if not (is_behind and "claim" in each.name)]
        return [*found, earlier] if is_behind and prefix == STORE_PREFIX else found

    chunks.list_chunks = list_chunks  # type: ignore[method-assign]
    config = SegmentStoreConfig(data_dir=place.data, container_count=1, cache_bytes_max=8 * MIB)
    directory = DataDirectory.open(place.data, container_count=1)
    async with open_storage(config, directory, given=chunks) as tier:
        with directory.lock_journal(0):
            async with owned(directory, tier, [0]) as ours:
                await ours.confirm(0)
                is_behind = True
                with pytest.raises(StorageAbsentError, match="has no claim of journal 0 any more"):
                    await ours.confirm(0)
                is_behind = False
                await ours.confirm(0)
            [earlier] = [each for each in await listed(STORE_PREFIX) if "claim" in each.name]
            written = chunks.write

            async def write(*arguments: Any, **options: Any) -> None:
                nonlocal is_behind
                await written(*arguments, **options)
                is_behind = True

            chunks.write = write  # type: ignore[method-assign]
            with pytest.raises(StorageUnreachableError, match=r"does not list .*claim-0-"):
                async with owned(directory, tier, [0]):
                    pytest.fail("let in")
    assert await place.start(b"two") == b"onetwo"


async def test_the_claim_of_a_refused_start_does_not_end_the_owner(place: Place) -> None:
    config = SegmentStoreConfig(
        data_dir=place.data, storage_dir=place.storage, container_count=1, cache_bytes_max=8 * MIB
    )
    async with open_containers(config) as opener, opener(0) as container:
        await container.create_segment(SEGMENT)
        await container.append(SEGMENT, b"one")
        [claim] = place.storage.rglob("store*claim-0-*")
        # Both found the same last claim; the other one met ours, and was killed or deletes it soon.
        number = claim.name.rpartition("-")[0]
        claim.with_name(f"{number}-{'f' * 16}.chunk").write_text("a refused start")
        log = container.parts.log  # type: ignore[attr-defined]
        before = log.bytes_since_truncation
        await container.checkpoint()  # type: ignore[attr-defined]
        await container.flush()  # type: ignore[attr-defined]
        assert log.bytes_since_truncation != before
    assert await place.start(b"two") == b"onetwo"


async def test_tier_2_that_cannot_be_asked_for_its_owner_keeps_the_log(place: Place) -> None:
    chunks = MemoryChunkStorage()
    config = SegmentStoreConfig(data_dir=place.data, container_count=1, cache_bytes_max=8 * MIB)
    listed = chunks.list_chunks

    async def refuse(prefix: str) -> list[ChunkInfo]:
        raise StorageError("tier 2 is away")

    async with open_containers(config, chunk_storage=chunks) as opener, opener(0) as container:
        await container.create_segment(SEGMENT)
        await container.append(SEGMENT, bytes(100_000))
        log = container.parts.log  # type: ignore[attr-defined]
        before = log.bytes_since_truncation
        await container.checkpoint()  # type: ignore[attr-defined]
        chunks.list_chunks = refuse  # type: ignore[method-assign]
        with pytest.raises(StorageError, match="away"):
            await container.flush()  # type: ignore[attr-defined]
        assert log.bytes_since_truncation >= before
        chunks.list_chunks = listed  # type: ignore[method-assign]
        await container.flush()  # type: ignore[attr-defined]
        assert log.bytes_since_truncation < before


async def test_two_new_stores_never_share_a_tier_2(tmp_path: Path) -> None:
    places = [Place(tmp_path / name, tmp_path / "tier-2") for name in ("one", "two")]
    (tmp_path / "tier-2").mkdir()
    meeting = MeetingStorage(FilesystemChunkStorage(tmp_path / "tier-2"), "identity", 2)
    served = await start_together(places, lambda: meeting)
    assert len(served) <= 1
    first = served[0] if served else places[1]
    content = b"" if served else b"new"
    assert (await first.start(content)) == (content or first.data.parent.name.encode())
    for other in places:
        if other is not first:
            await other.refused_when_new("belongs to another store")


async def test_two_copies_that_start_together_never_share_a_tier_2(
    place: Place, tmp_path: Path
) -> None:
    await place.start(b"zero")
    copy = Place(tmp_path / "copy", place.storage)
    copy_tree(place.data, copy.data)
    meeting = MeetingStorage(FilesystemChunkStorage(place.storage), "claim", 2)
    served = await start_together([place, copy], lambda: meeting)
    assert len(served) <= 1
    first = served[0] if served else copy
    assert (await first.start()).startswith(b"zero")
    await (place if first is copy else copy).refused(IdentityProblem.CLAIMED)


async def test_two_new_stores_that_were_killed_when_they_met(tmp_path: Path) -> None:
    places = [Place(tmp_path / name, tmp_path / "tier-2") for name in ("one", "two")]
    (tmp_path / "tier-2").mkdir()
    files = FilesystemChunkStorage(tmp_path / "tier-2")
    for place in places:
        store_id = DataDirectory.open(place.data, container_count=1).store_id
        await files.write(identity_name(store_id), offset=0, data=[b"?"])
    with pytest.raises(IdentityError, match="belongs to another store"):
        await places[0].start()
    assert await places[1].start(b"two") == b"two"
    await places[0].refused_when_new("belongs to another store")


@pytest.mark.parametrize("round_", range(8))
async def test_of_starts_at_any_times_at_most_one_serves(tmp_path: Path, round_: int) -> None:
    places = [Place(tmp_path / str(number), tmp_path / "tier-2") for number in range(3)]
    (tmp_path / "tier-2").mkdir()

    async def start(place: Place, delay: float) -> None:
        await trio.sleep(delay)
        try:
            await place.start(place.data.parent.name.encode())
            served.append(place)
        except IdentityError:
            refused.append(place)

    served: list[Place] = []
    refused: list[Place] = []
    async with trio.open_nursery() as nursery:
        for number, place in enumerate(places):
            nursery.start_soon(start, place, number * round_ / 1000)
    assert len(served) <= 1
    [winner] = served or places[:1]
    assert await winner.start() == (winner.data.parent.name.encode() if served else b"")
    for place in places:
        if place is not winner:
            await place.refused_when_new("belongs to another store")


# ---- A making that is interrupted ----------------------------------------------------------------


fsync = os.fsync


class Killed(BaseException):
    """The process is dead: none of its later actions happen."""


class Killer:
    """A counter of the steps that change files and chunks.

    It ends the process before one of them.
    """

    STEPS = ("mkdir", "link", "replace", "unlink", "fsync", "write")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.dies_at: int | None = None
        for name in self.STEPS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.step()
            # Syncs take most of the time, and change nothing for a process that is killed.
            return None if step is fsync else step(*arguments, **options)

        return counted

    def step(self) -> None:
        """Count a step that is about to change something; die if this is the chosen one."""
        self.count += 1
        if self.dies_at is not None and self.count >= self.dies_at:
            raise Killed


class KillableStorage(MeetingStorage):
    """Chunks whose changes count as steps."""

    def __init__(self, chunks: ChunkStorage, killer: Killer) -> None:
        super().__init__(chunks, "none", 0)
        self._killer = killer

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self._killer.step()
        await self._chunks.write(name, offset=offset, data=data, meanwhile=meanwhile)

    async def delete(self, name: str) -> None:
        self._killer.step()
        await self._chunks.delete(name)


async def begin(place: Place, killer: Killer) -> None:
    """Begin a start up to where containers could be opened, and stop cleanly."""
    config = SegmentStoreConfig(data_dir=place.data, container_count=1, cache_bytes_max=8 * MIB)
    directory = DataDirectory.open(place.data, container_count=1)
    files = FilesystemChunkStorage(place.storage)
    with closing(files), directory.lock_journal(0):
        chunks = KillableStorage(files, killer)
        async with (
            open_storage(config, directory, given=chunks) as tier,
            owned(directory, tier, [0]),
        ):
            pass


def copy_in_place(source: str, target: str) -> None:
    """Copy a file as if it had always been here: locks tell a copy by their numbers."""
    if source.endswith(".lock"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


@pytest.mark.parametrize("what", ["new", "stopped"])
async def test_whatever_step_a_start_is_killed_at_the_next_one_finishes_it(
    tmp_path: Path, what: str
) -> None:
    original = Place(tmp_path / "original")
    original.storage.mkdir(parents=True)
    if what != "new":
        await original.start(b"data")
    step = 0
    while True:
        step += 1
        place = Place(tmp_path / str(step))
        shutil.copytree(original.data.parent, place.data.parent, copy_function=copy_in_place)
        with pytest.MonkeyPatch.context() as patch:
            killer = Killer(patch)
            killer.dies_at = step
            try:
                await begin(place, killer)
                break
            except Killed:
                pass
        with pytest.MonkeyPatch.context() as patch:  # once more, at another step
            killer = Killer(patch)
            killer.dies_at = 1 + (7 * step) % 30
            with suppress(Killed):
                await begin(place, killer)
        expected = b"data" if what == "stopped" else b""
        if step % 4 == 0:
            assert await place.start(b"more") == expected + b"more"
        else:
            with pytest.MonkeyPatch.context() as patch:
                await begin(place, Killer(patch))
        shutil.rmtree(place.data.parent)
    assert step > 10


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DataLogError),
        (errno.EMFILE, DataLogError),
        (errno.EACCES, DataDirectoryError),
    ],
)
async def test_a_full_disk_at_the_start_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    place = Place(tmp_path)
    await place.start(b"one")

    def fail(path: Path, text: str) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(journal_identity, "write_durably", fail)
        with pytest.raises(kind, match=r"journal-0/identity.toml cannot be written"):
            await place.start(b"two")
    assert await place.start(b"three") == b"onethree"


class ReadOnlyChunks(MemoryChunkStorage):
    """A tier 2 whose credentials allow to read."""

    async def write(
        self, name: str, *, offset: int, data: Sequence[Buffer], check: Check | None = None
    ) -> None:
        raise StorageError("access denied")


async def test_a_refused_first_start_leaves_the_number_of_containers_open(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with pytest.raises(StorageError, match="access denied"):
        await place.start(b"never", chunks=ReadOnlyChunks(), containers=2)
    assert await place.start(b"stored", containers=3) == b"stored"
    with pytest.raises(DataDirectoryError, match="made for 3 containers"):
        await place.start(b"never", containers=2)
