"""The present start of the machine is identified, or its identity is unknown."""

from __future__ import annotations

import uuid
from pathlib import Path

from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.runtime.boot import boot_id
from segstore.tiers.files.filesystem import FilesystemChunkStorage


def test_a_start_has_one_name() -> None:
    assert boot_id() == boot_id()
    assert str(uuid.UUID(boot_id())) == boot_id()


def test_a_start_without_a_name_is_another_one_every_time(tmp_path: Path) -> None:
    missing, damaged = tmp_path / "missing", tmp_path / "damaged"
    damaged.write_text("no name\n")
    assert len({boot_id(path) for path in [missing, missing, damaged, damaged]}) == 4


async def claims(path: Path) -> list[bytes]:
    storage = FilesystemChunkStorage(path / "storage")
    found = [
        bytes(await storage.read(each.name, offset=0, length=each.length))
        for each in await storage.list_chunks("_system/chunks-0$claim")
    ]
    storage.close()
    return found


async def test_a_store_notes_on_which_start_it_has_recovered(tmp_path: Path) -> None:
    config = SegmentStoreConfig(data_dir=tmp_path, container_count=1)
    for start in ("first", "second", "second"):
        async with (
            open_containers(config, boot_id_of_machine=lambda: start) as opener,  # noqa: B023
            opener(0) as container,
        ):
            if start == "first":
                await container.create_segment("s")
            await container.append("s", start.encode())
            length = container.segment_info("s").length
            result = await container.read("s", offset=0, length_max=length)
            assert bytes(result.data) == b"firstsecondsecond"[: len(result.data)]
        noted = f"{start}\nrecovered\n".encode()
        assert any(claim.startswith(noted) for claim in await claims(tmp_path))
