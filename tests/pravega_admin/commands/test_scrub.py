"""``segstore scrub`` on the data directory of a store that was stopped, or runs."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from typer.testing import CliRunner, Result

from pravega_admin.verbs import app
from pravega_wire.names import container_of
from segstore.process.assembly import open_containers
from segstore.process.config import MIB, SegmentStoreConfig

SEGMENTS = ["scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0", "scope/stream/2.#epoch.0"]
DATA = random.Random(2).randbytes(700_000)
BLOCK = 65_536


def config(path: Path) -> SegmentStoreConfig:
    return SegmentStoreConfig(
        data_dir=path,
        container_count=2,
        cache_bytes_max=32 * MIB,
        journal_file_bytes=4 * MIB,
        journal_bytes_max=64 * MIB,
    )


async def serve(path: Path, *, meanwhile: Any = None) -> None:
    """Write to some segments of two containers, and end in peace."""
    async with open_containers(config(path)) as opener, opener(0) as first, opener(1) as second:
        for name in SEGMENTS:
            container = (first, second)[container_of(name, 2)]
            await container.create_segment(name)
            await container.append(name, DATA)
        if meanwhile is not None:
            for container in (first, second):
                await container.flush()  # type: ignore[attr-defined]
            await meanwhile()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "data"
    trio.run(serve, path)
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """A copy, whose tier 2 is where the data directory says."""
    path = tmp_path / "data"
    shutil.copytree(made, path)
    note = path / "segstore.toml"
    note.write_text(note.read_text().replace(str(made), str(path)))
    return path


@pytest.fixture(autouse=True)
def logs_for_one_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command sets up the logs of its whole process, which here runs other tests too."""

    def configure(*given: object, **options: object) -> None:
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=sys.stderr))

    monkeypatch.setattr("pravega_admin.output.logs.configure_logs", configure)
    yield
    structlog.reset_defaults()


def scrub(path: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["scrub", "--data-dir", str(path), *options])


def report_of(result: Result) -> dict[str, Any]:
    report = json.loads(result.stdout)
    assert isinstance(report, dict)
    return report


def chunk_of(path: Path, segment: str) -> Path:
    [found] = (path / "storage").glob(f"{segment}.S-*.chunk")
    return found


def test_a_whole_store_is_whole(store: Path) -> None:
    result = scrub(store, "-o", "json")
    report = report_of(result)
    assert result.exit_code == 0
    assert report["damages"] == []
    assert report["containers"] == 2
    assert report["segments"] >= 3
    assert report["bytes"] >= 3 * len(DATA)
    assert report["unchecked_bytes"] == 0
    table = scrub(store)
    assert table.exit_code == 0
    assert "unchecked bytes  0" in table.stdout


def test_damage_is_named_and_has_an_exit_code(store: Path) -> None:
    flipped, cut, lost = (chunk_of(store, segment) for segment in SEGMENTS)
    data = bytearray(flipped.read_bytes())
    data[3 * BLOCK + 17] ^= 64
    data[9 * BLOCK + 17] ^= 1
    flipped.write_bytes(data)
    cut.write_bytes(DATA[:1000])
    lost.unlink()
    result = scrub(store, "-o", "json")
    assert result.exit_code == 8
    found = {
        (each["kind"], each["segment"].rpartition(".S-")[0], each["chunk_offset"])
        for each in report_of(result)["damages"]
    }
    assert found == {
        ("checksum", SEGMENTS[0], 3 * BLOCK),
        ("checksum", SEGMENTS[0], 9 * BLOCK),
        ("short", SEGMENTS[1], 1000),
        ("missing", SEGMENTS[2], 0),
    }
    assert "4 places of tier 2 are damaged" in result.stderr
    table = scrub(store)
    assert table.exit_code == 8
    assert "SEGMENT OFFSET" in table.stdout


def test_damaged_metadata_are_named_and_other_containers_are_checked(store: Path) -> None:
    container = container_of(SEGMENTS[0], 2)
    for path in (store / "storage" / "_system").glob(f"chunks-{container}$snapshot*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    result = scrub(store, "-o", "json")
    assert result.exit_code == 8
    [damage] = report_of(result)["damages"]
    assert damage["kind"] == "metadata"
    assert damage["container"] == container
    assert "damaged" in damage["reason"]


def test_a_running_store_is_checked_and_not_disturbed(tmp_path: Path) -> None:
    reports: list[dict[str, Any]] = []

    async def look() -> None:
        result = await trio.to_thread.run_sync(lambda: scrub_in_process(tmp_path / "data"))
        reports.append(result)

    trio.run(lambda: serve(tmp_path / "data", meanwhile=look))
    [report] = reports
    assert report["damages"] == []
    assert report["bytes"] >= 3 * len(DATA)
    assert report["unchecked_bytes"] > 0, "what was just written is not noted yet"


def scrub_in_process(path: Path) -> dict[str, Any]:
    """Scrub the path with the command, run in this process."""
    result = scrub(path, "-o", "json")
    assert result.exit_code == 0, result.output
    return report_of(result)


@pytest.mark.parametrize("options", [["--rate", "0.5MB"], []])
def test_the_rate_is_kept(store: Path, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep_until(deadline: float) -> None:
        slept.append(deadline)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr("segstore.chunks.scrub.trio.sleep_until", sleep_until)
    assert scrub(store, *options).exit_code == 0
    assert bool(slept) == bool(options)
    if slept:
        assert slept[-1] - slept[0] > 1.9 * len(DATA) / 500_000


def test_what_is_no_store_or_not_its_tier_2_is_refused(store: Path, tmp_path: Path) -> None:
    nothing = scrub(tmp_path / "nothing")
    assert nothing.exit_code == 78
    assert "is no data directory" in nothing.stderr
    assert not (tmp_path / "nothing").exists()
    for identity in (store / "storage" / "_system").glob("store$*"):
        identity.unlink()
    assert "does not belong to the store" in scrub(store).stderr
    shutil.rmtree(store / "storage")
    unmounted = scrub(store)
    assert unmounted.exit_code == 78
    assert "is a disk not mounted?" in unmounted.stderr


def test_a_rate_that_is_none_is_wrong_usage(store: Path) -> None:
    assert scrub(store, "--rate", "fast").exit_code == 2
