"""Every kind of file in tier 2 meets every kind of damage: docs/reliability.md says what comes of
it, and that is what is tested here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import trio

from segstore.chunks.checksums import BLOCK_BYTES
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.errors import SegmentStoreError, leaf_errors
from segstore.model.attributes import AttributeUpdate, AttributeUpdateType
from segstore.tiers.memory import MemoryChunkStorage
from segstore.tiers.s3.objects import ObjectStore
from segstore.tiers.s3.pieces import RecentObjects
from segstore.tiers.s3.storage import S3Tier
from support.faults.crashing_tiers import CrashingTiers
from support.simulated.simulated_objects import SimulatedBucket

PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
DATA: Final = {name: Random(name).randbytes(2 * BLOCK_BYTES + 5000) for name in ("s", "t")}
KEYS: Final = [number.to_bytes(16, "big") for number in range(1, 400)]
SEEDS: Final = range(6)

MORE: Final = Random(1).randbytes(100)
LAST_UPDATE: Final = 100_000
REPAIRED: Final = ""

Files = dict[str, bytearray]


def table() -> dict[tuple[str, str], str]:
    """Return the cells of the page's table, by file and damage."""
    text = PAGE.read_text()
    lines = text[text.index("| file | bit flip |") :].partition("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        (row[0], damage): cell
        for row in rows
        for damage, cell in zip(head[1:], row[1:], strict=True)
    }


CELLS: Final = table()


class Store:
    """A container on tiers in memory, written, and then stopped or killed."""

    def __init__(self, *, killed: bool) -> None:
        self.killed = killed
        self.tiers = CrashingTiers()
        self.tiers.boot_id = "this start"

    @property
    def files(self) -> Files:
        assert isinstance(self.tiers.chunks, MemoryChunkStorage)
        return self.tiers.chunks.contents

    async def write(self) -> None:
        async with self.tiers.open() as container:
            for name, data in DATA.items():
                await container.create_segment(name)
                for start in range(0, len(data), 50_000):
                    updates = [
                        AttributeUpdate(key, AttributeUpdateType.REPLACE, start + ord(name))
                        for key in KEYS
                    ]
                    await container.append(
                        name, data[start : start + 50_000], attribute_updates=updates
                    )
            await container.flush()
            if self.killed:
                storage: Any = container.parts.storage
                await storage.journal.record_checksums()
                self.tiers.crash()

    async def read(self) -> str:
        """Read everything, write more and read all in another life: ``REPAIRED`` or an error."""
        contents = dict(DATA)
        try:
            for _ in range(2):
                async with self.tiers.open(segment_count_max=1, container_count_max=1) as container:
                    for name, content in contents.items():
                        await self._check(container, name, content)
                        await container.append(name, MORE)
                        contents[name] += MORE
        except (SegmentStoreError, ExceptionGroup) as error:
            leaves = list(leaf_errors(error))
            assert all(isinstance(leaf, SegmentStoreError) for leaf in leaves), leaves
            return " ".join(map(str, leaves))
        return REPAIRED

    async def _check(self, container: Any, name: str, content: bytes) -> None:
        read = b""
        while len(read) < len(content):
            part = await container.read(name, offset=len(read), length_max=40_000)
            assert part.data, "there must be something, or an error"
            read += part.data
        assert read == content, "wrong bytes were returned"
        values = await container.get_attributes(name, KEYS[:20])
        assert values == dict.fromkeys(KEYS[:20], LAST_UPDATE + ord(name)), (
            "wrong attributes were returned"
        )


class Objects:
    """Chunks in S3, without a container."""

    def __init__(self) -> None:
        self.bucket = SimulatedBucket()
        objects = ObjectStore(self.bucket, bucket="bucket", prefix="", random=Random(1).random)
        self.tier = S3Tier(objects)
        self.epoch = 0

    @property
    def files(self) -> Files:
        return {key: bytearray(each.body) for key, each in self.bucket.objects.items()}

    def owner(self) -> ChunkedSegmentStorage:
        self.epoch += 1
        epoch = self.epoch
        self.tier._recent = RecentObjects(0)
        return ChunkedSegmentStorage(self.tier.owned_by(lambda: epoch), epoch=lambda: epoch)

    async def write(self) -> None:
        storage = self.owner()
        for name, data in DATA.items():
            # One piece: others might be covered by later ones, and nobody would miss them.
            await storage.write(name, offset=0, data=[data], rollover_bytes=0)
        await storage.settle()

    async def read(self) -> str:
        storage = self.owner()
        try:
            for name, data in DATA.items():
                read = b""
                while len(read) < len(data):
                    read += await storage.read(name, offset=len(read), length=40_000)
                assert read[: len(data)] == data, "wrong bytes were returned"
        except SegmentStoreError as error:
            return str(error)
        return REPAIRED


def replace_object(store: Objects, key: str, body: bytes | None, *, metadata_of: str) -> None:
    objects = store.bucket.objects
    metadata = objects[metadata_of].metadata
    del objects[key]
    if body is not None:
        objects[key] = type(next(iter(objects.values())))(body, metadata)


KINDS: Final[dict[str, tuple[Callable[[], Store | Objects], str]]] = {
    "chunk, after a clean stop": (lambda: Store(killed=False), r"[st]\.S-\d+\$\d.*"),
    "chunk, after a kill": (lambda: Store(killed=True), r"[st]\.S-\d+\$\d.*"),
    "attribute index, after a clean stop": (lambda: Store(killed=False), r"[st]\..*attributes.*"),
    "snapshot of chunk metadata": (lambda: Store(killed=True), r"_system/.*snapshot.*"),
    "journal of chunk metadata": (lambda: Store(killed=True), r"_system/.*journal.*"),
    "claim": (lambda: Store(killed=True), r"_system/.*claim.*"),
    "piece of a chunk in S3": (Objects, r"[st]\$.*"),
}


def damaged(kind: str, data: bytes, random: Random, other: bytes) -> bytes | None:
    """Return a damaged copy of a file's content; None when the file is gone."""
    place = random.randrange(max(1, len(data)))
    match kind:
        case "bit flip":
            changed = bytearray(data)
            changed[place] ^= 1 << random.randrange(8)
            return bytes(changed)
        case "truncated":
            return data[:place]
        case "longer":
            return data + random.randbytes(random.randrange(1, 300))
        case "missing":
            return None
        case "swapped":
            return other
        case _:
            end = random.choice([place + random.randrange(1, 300), len(data)])
            start = random.choice([0, place])
            return data[:start] + bytes(len(data[start:end])) + data[end:]


async def outcome(file: str, damage: str, seed: int) -> tuple[str, str, str]:
    """Return the damaged file, its segment, and the message of a store that is started on it."""
    random = Random(f"{file} {damage} {seed}")
    make, pattern = KINDS[file]
    store, other = make(), make()
    await store.write()
    names = sorted(name for name in store.files if re.fullmatch(pattern, name))
    name = random.choice(names)
    if isinstance(store, Objects):
        # The object that is swapped in brings its checksums along.
        twins = [each for each in names if each != name]
        twins = [each for each in twins if len(store.files[each]) == len(store.files[name])]
        twin = random.choice(twins) if damage == "swapped" else name
        body = bytes(store.files[twin])
        changed = damaged(damage, body, random, body)
        replace_object(store, name, changed, metadata_of=twin)
    else:
        assert isinstance(other, Store)
        if file.startswith(("chunk", "attribute")):
            [twin] = [each for each in names if each[0] != name[0]]
            content = bytes(store.files[twin])
        else:
            await other.write()
            theirs = sorted(each for each in other.files if re.fullmatch(pattern, each))
            content = bytes(other.files[theirs[names.index(name)]])
        changed = damaged(damage, bytes(store.files[name]), random, content)
        if changed is None:
            del store.files[name]
        else:
            store.files[name][:] = changed
    # Of metadata that are lost a container may be all that is known, or a segment they were of.
    segment = r"([st]|container 0)" if name.startswith("_system") else name[0]
    return name, segment, await store.read()


@pytest.mark.parametrize(("file", "damage"), CELLS)
async def test_damage_is_refused_and_named_or_repaired(
    file: str, damage: str, autojump_clock: trio.testing.MockClock
) -> None:
    found = set()
    for seed in SEEDS:
        name, segment, answer = await outcome(file, damage, seed)
        found.add("repaired" if answer == REPAIRED else "refused")
        if answer != REPAIRED:
            named = re.search(rf"\b{segment}(\.S-\d+)?\b", answer)
            assert name in answer or named, f"{answer} names neither {name} nor {segment}"
    expected = CELLS[file, damage]
    assert found == {expected} or (expected == "either" and found <= {"repaired", "refused"})


def test_the_page_has_every_file_and_every_damage() -> None:
    damages = ["bit flip", "truncated", "longer", "missing", "swapped", "zeros"]
    assert list(CELLS) == [(file, damage) for file in KINDS for damage in damages]
    assert set(CELLS.values()) == {"refused", "repaired", "either"}


async def test_a_store_that_checks_nothing_is_found_out(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr("segstore.chunks.checksums.find_damage", lambda *_: -1)
    with pytest.raises((AssertionError, ExceptionGroup)) as found:
        await outcome("chunk, after a clean stop", "bit flip", 0)
    assert "wrong bytes were returned" in "".join(map(str, leaf_errors(found.value)))
