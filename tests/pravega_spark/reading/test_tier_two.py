"""Bytes of chunks in a directory: exactly those asked for, checked, or a sentence."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _fast.log.block_sums import extend_sums
from pravega_spark.errors import DamagedError, TierMissingError, TierUnreachableError
from pravega_spark.reading import tier_two
from pravega_spark.reading.tier_two import BLOCK_BYTES, TierAddress, TierTwo, open_tier, read_chunk
from pravega_wire.commands import PlannedChunk, PlannedObject

STORE = "0" * 32
CHUNK_BYTES = 5 * BLOCK_BYTES + 1_234
DATA = random.Random(1).randbytes(CHUNK_BYTES)


def opened(root: Path) -> TierTwo:
    mark = root / "_system" / f"store$identity-{STORE}.chunk"
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    return open_tier(TierAddress(root.as_uri(), STORE))


def chunk(phase: int, checked: int, objects: tuple[PlannedObject, ...]) -> PlannedChunk:
    sums = extend_sums(b"", phase, 0, [DATA[:checked]], BLOCK_BYTES)
    return PlannedChunk(phase, CHUNK_BYTES, "a chunk", phase, checked, sums, objects)


WHOLE = (PlannedObject(0, 2**62, "file", 0),)


@settings(deadline=None)
@given(
    phase=st.integers(0, BLOCK_BYTES - 1),
    checked=st.integers(0, CHUNK_BYTES),
    ends=st.tuples(st.integers(0, CHUNK_BYTES), st.integers(0, CHUNK_BYTES)),
    cuts=st.sets(st.integers(1, CHUNK_BYTES - 1), max_size=4),
)
def test_any_range_of_a_chunk_in_any_objects(
    tmp_path_factory: pytest.TempPathFactory,
    phase: int,
    checked: int,
    ends: tuple[int, int],
    cuts: set[int],
) -> None:
    root = tmp_path_factory.mktemp("tier")
    edges = [0, *sorted(cuts), CHUNK_BYTES]
    objects = []
    for first, last in pairwise(edges):
        (root / f"object-{first}").write_bytes(b"before" + DATA[first:last] + b"behind")
        objects.append(PlannedObject(first, last - first, f"object-{first}", 6))
    tier = opened(root)
    tier.read_bytes = 2 * BLOCK_BYTES
    start, end = sorted(ends)
    found = b"".join(read_chunk(tier, chunk(phase, checked, tuple(objects)), start, end))
    tier.close()
    assert found == DATA[start:end]


@pytest.mark.parametrize("position", [0, BLOCK_BYTES, CHUNK_BYTES - 1])
def test_a_damaged_block_is_never_returned(tmp_path: Path, position: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= 0x80
    (tmp_path / "file").write_bytes(damaged)
    tier = opened(tmp_path)
    with pytest.raises(DamagedError, match="a chunk in tier 2 is damaged: the block at byte"):
        list(read_chunk(tier, chunk(100, CHUNK_BYTES, WHOLE), max(0, position - 1), position + 1))
    tier.close()


def test_a_block_that_was_damaged_on_its_way_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(DATA)
    tier = opened(tmp_path)
    looks = iter([7, -1])
    monkeypatch.setattr(tier_two, "find_damage", lambda *_: next(looks))
    assert b"".join(read_chunk(tier, chunk(0, CHUNK_BYTES, WHOLE), 0, 10)) == DATA[:10]
    tier.close()


def test_a_file_that_ends_early_is_damage_and_one_that_is_not_there_is_missing(
    tmp_path: Path,
) -> None:
    tier = opened(tmp_path)
    with pytest.raises(TierMissingError, match="file is not there"):
        list(read_chunk(tier, chunk(0, CHUNK_BYTES, WHOLE), 0, 10))
    (tmp_path / "file").write_bytes(DATA[:100])
    with pytest.raises(DamagedError, match="file ends before byte"):
        list(read_chunk(tier, chunk(0, CHUNK_BYTES, WHOLE), 0, 200))
    tier.close()


def test_another_stores_directory_and_strange_places_are_not_read(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(TierUnreachableError, match="cannot be read here"):
        open_tier(TierAddress(tmp_path.as_uri(), "1" * 32))
    with pytest.raises(TierUnreachableError, match="only the store can read that"):
        open_tier(TierAddress("hdfs://name/path", STORE))


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 60)],
        [(40, 60)],
        [(0, 40), (60, 40)],
        [(0, 60), (40, 60)],
    ],
    ids=["no end", "no beginning", "no middle", "an overlap"],
)
def test_objects_that_do_not_follow_each_other_are_not_read(
    tmp_path: Path, parts: list[tuple[int, int]]
) -> None:
    (tmp_path / "file").write_bytes(DATA)
    objects = tuple(PlannedObject(start, length, "file", start) for start, length in parts)
    tier = opened(tmp_path)
    with pytest.raises(TierMissingError, match="no object has bytes"):
        list(read_chunk(tier, chunk(0, 0, objects), 0, 100))
    tier.close()
