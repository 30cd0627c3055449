"""One store of a new cluster makes the identity of its tier 2."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from segstore.errors import IdentityError
from segstore.ownership.cluster_identity import join_cluster
from support.models.memory_server import MemoryZooKeeper

from .test_cluster_identity import ROOT, open_tier


@pytest.mark.parametrize("at_once", [False, True])
async def test_stores_on_two_places_are_not_of_one_cluster(tmp_path: Path, at_once: bool) -> None:
    """Two machines whose directory is not mounted, started for the first time."""
    server = MemoryZooKeeper()
    joined: list[str] = []

    async def join(name: str) -> None:
        async with open_tier(tmp_path / name) as tier:
            try:
                await join_cluster(server.open_session(), ROOT, tier, container_count=4)
            except IdentityError:
                return
            joined.append(name)

    async with trio.open_nursery() as nursery:
        for name in ("one", "two"):
            if at_once:
                nursery.start_soon(join, name)
            else:
                await join(name)
    assert len(joined) <= 1, "each has a tier 2 of its own, and both are taken for the cluster's"
