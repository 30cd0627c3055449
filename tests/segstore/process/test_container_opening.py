"""Each opening of a container has a view of tier 2 of its own."""

from __future__ import annotations

from pathlib import Path

from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig

MIB = 1024 * 1024


def last_claim(data_dir: Path) -> str:
    """Return the name of the file of container 0's last claim in tier 2."""
    return max(each.name for each in data_dir.rglob("chunks-0$claim-*"))


async def test_each_opening_of_a_container_claims_tier_2_under_the_epoch_of_its_log(
    tmp_path: Path,
) -> None:
    config = SegmentStoreConfig(data_dir=tmp_path, container_count=1, cache_bytes_max=8 * MIB)
    epochs: list[int] = []
    async with open_containers(config) as opener:
        for number in range(3):
            async with opener(0) as container:
                await container.create_segment(f"s{number}")
                await container.append(f"s{number}", b"data")
                await container.flush()  # type: ignore[attr-defined]
                epochs.append(container.parts.log.epoch)  # type: ignore[attr-defined]
                assert f"claim-{epochs[-1]:010d}-" in last_claim(tmp_path)
    assert epochs == sorted(set(epochs)), "no two openings have the same epoch"
