"""Only stores of a cluster join it, and only on the cluster's tier 2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from segstore.errors import IdentityError, IdentityProblem, StorageAbsentError
from segstore.ownership.cluster_identity import (
    ClusterIdentity,
    confirm_tier_two,
    join_cluster,
)
from segstore.ownership.data_directory import StoreState
from segstore.process.config import SegmentStoreConfig
from segstore.process.tier_two import open_shared_storage
from segstore.tiers.vendor import TierTwo
from support.models.memory_server import Loss, MemorySession, MemoryZooKeeper

ROOT = "/pravega/test"


@asynccontextmanager
async def open_tier(path: Path) -> AsyncIterator[TierTwo]:
    config = SegmentStoreConfig(data_dir=path / "unused", storage_dir=path)
    async with open_shared_storage(config) as tier:
        yield tier


@pytest.fixture
def server() -> MemoryZooKeeper:
    return MemoryZooKeeper()


@pytest.fixture
def session(server: MemoryZooKeeper) -> MemorySession:
    return server.open_session()


async def test_stores_that_join_at_once_are_of_one_cluster(
    session: MemorySession, tmp_path: Path
) -> None:
    found: list[ClusterIdentity] = []

    async def join() -> None:
        async with open_tier(tmp_path / "tier-2") as tier:
            found.append(await join_cluster(session, ROOT, tier, container_count=4))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(join)
    await join()
    assert len(set(found)) == 1
    assert found[0].state is StoreState.COMPLETE


async def test_lost_answers_are_looked_up(
    server: MemoryZooKeeper,
    session: MemorySession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("segstore.ownership.cluster_identity.RETRY_SECONDS", 0.0)
    for number, kind in enumerate((Loss.ANSWER, Loss.CALL)):
        random = Random(number)

        def lose(path: str, kind: Loss = kind, random: Random = random) -> Loss:
            return kind if random.random() < 0.3 else Loss.NONE

        server.lose_answer = lose
        async with open_tier(tmp_path / f"tier-{number}") as tier:
            root = f"{ROOT}-{number}"
            identity = await join_cluster(session, root, tier, container_count=4)
            assert identity == await join_cluster(session, root, tier, container_count=4)


async def test_the_number_of_containers_never_changes(
    session: MemorySession, tmp_path: Path
) -> None:
    async with open_tier(tmp_path) as tier:
        await join_cluster(session, ROOT, tier, container_count=4)
        with pytest.raises(IdentityError, match="made for 4 containers"):
            await join_cluster(session, ROOT, tier, container_count=8)


async def test_another_tier_2_is_refused_and_left_as_it_is(
    session: MemorySession, tmp_path: Path
) -> None:
    async with open_tier(tmp_path / "one") as tier:
        await join_cluster(session, ROOT, tier, container_count=4)
    async with open_tier(tmp_path / "two") as tier:
        await join_cluster(session, f"{ROOT}-2", tier, container_count=4)
        with pytest.raises(IdentityError) as caught:
            await join_cluster(session, ROOT, tier, container_count=4)
        assert caught.value.problem is IdentityProblem.FOREIGN
        # So is a new cluster, there.
        with pytest.raises(IdentityError, match="has chunks already"):
            await join_cluster(session, f"{ROOT}-3", tier, container_count=4)
        assert len(await tier.chunks_under(1).list_chunks("")) == 1
    (tmp_path / "empty").mkdir()
    async with open_tier(tmp_path / "empty") as tier:
        with pytest.raises(IdentityError) as caught:
            await join_cluster(session, ROOT, tier, container_count=4)
        assert caught.value.problem is IdentityProblem.MISSING
        assert not list((tmp_path / "empty").iterdir())


async def test_a_tier_2_that_was_emptied_is_found_before_a_log_is_truncated(
    session: MemorySession, tmp_path: Path
) -> None:
    async with open_tier(tmp_path) as tier:
        identity = await join_cluster(session, ROOT, tier, container_count=4)
        chunks = tier.chunks_under(1)
        await confirm_tier_two(identity, chunks, tier.where)
        for each in await chunks.list_chunks(""):
            await chunks.delete(each.name)
        with pytest.raises(StorageAbsentError, match="emptied or replaced"):
            await confirm_tier_two(identity, chunks, tier.where)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"format_version = 2\n", b'format_version = 1\ncluster_id = "x"\n']
)
async def test_a_damaged_identity_is_refused(
    session: MemorySession, tmp_path: Path, data: bytes
) -> None:
    async with open_tier(tmp_path) as tier:
        await join_cluster(session, ROOT, tier, container_count=4)
        await session.set(f"{ROOT}/segstore/identity", data, 1)
        with pytest.raises(IdentityError, match="damaged or of another version"):
            await join_cluster(session, ROOT, tier, container_count=4)
