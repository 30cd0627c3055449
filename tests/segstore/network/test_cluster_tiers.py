"""Stores of a cluster whose tier 2 was emptied, and put back."""

# ruff: noqa: F401, F811 - fixtures are imported by their names

from __future__ import annotations

import shutil

import pytest
import trio

from support.rare_parameters import mark_rare

from .test_cluster import Cluster, cluster, writer_of, writing


@pytest.mark.parametrize("was_opened", mark_rare([True, False], 1))
async def test_a_container_is_not_opened_on_a_tier_2_that_was_emptied(
    cluster: Cluster,
    was_opened: bool,
) -> None:
    one, two = await cluster.start(), await cluster.start()
    if was_opened:
        await cluster.assign(two)
        async with writing(two) as writer:
            await writer.wait_acknowledged(10)
    await cluster.assign(one)
    async with writing(one) as writer:
        await writer.wait_acknowledged(100)
    one.shutdown.set()
    await one.ended.wait()
    tier = cluster.path / "tier-2"
    files = [p for p in tier.rglob("*") if p.is_file()]
    assert files
    for each in tier.iterdir():
        shutil.rmtree(each)
    await cluster.assign(two)
    await trio.sleep(4)
    left = [p for p in tier.rglob("*") if p.is_file()]
    assert not left, "chunks were written to what is not the cluster's tier 2"


async def test_all_is_there_when_tier_2_is_put_back(cluster: Cluster) -> None:
    """It is put back by a copy of the bucket, or of the directory, over what is there."""
    one, two = await cluster.start(), await cluster.start()
    await cluster.assign(one)
    async with writing(one) as writer:
        await writer.wait_acknowledged(100)
    one.shutdown.set()
    await one.ended.wait()
    tier = cluster.path / "tier-2"
    shutil.copytree(tier, cluster.path / "kept")
    for each in tier.iterdir():
        shutil.rmtree(each)
    await cluster.assign(two)
    await trio.sleep(3)
    shutil.copytree(cluster.path / "kept", tier, dirs_exist_ok=True)
    two.shutdown.set()
    await two.ended.wait()
    three = await cluster.start()
    await cluster.assign(three)
    with trio.fail_after(60):
        last = writer_of(three)
        assert await last.check() >= writer.acknowledged
