"""Chunks in files: names, durability, limits, errors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.errors import ChunkNotFoundError, StorageError, StorageFullError
from segstore.tiers.chunk_paths import name_of, path_of
from segstore.tiers.files.doubtful_files import DoubtNotes
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.files.open_files import OpenFiles
from support.open_files import list_open_files
from support.small_disks import small_disk

COMPONENTS = st.one_of(
    st.sampled_from(
        ["", ".", "..", "%", "a%", ".chunk", "x.chunk", "x%2Echunk", "~", "a.chunk%new"]
    ),
    st.text(max_size=8),
    st.text(alphabet="ab./#_$%-", max_size=12),
    st.integers(235, 250).map(lambda length: "n" * length),
    st.integers(470, 490).map(lambda length: "." + "m" * length + ".chunk"),
    st.integers(75, 85).map(lambda length: "é" * length),
)
NAMES = st.lists(COMPONENTS, min_size=1, max_size=5).map("/".join)


@given(NAMES)
def test_a_name_comes_back_from_its_path(name: str) -> None:
    path = path_of(name)
    assert name_of(path) == name
    components = path.split("/")
    assert all(0 < len(os.fsencode(component)) <= 255 for component in components)
    assert not {".", ".."} & set(components)
    assert "\0" not in path


@given(NAMES, NAMES)
def test_no_file_is_where_another_chunk_needs_a_directory(first: str, second: str) -> None:
    assert not path_of(second).startswith(path_of(first) + "/")


@pytest.mark.parametrize("path", ["a", "a.chunk%new", "dir/a.txt", "segstore.toml", "a.chunk/b"])
def test_other_files_are_no_chunks(path: str) -> None:
    assert name_of(path) is None


def test_usual_names_stay_readable() -> None:
    name = "scope/stream/0.#epoch.0$00000000000000000000"
    assert path_of(name) == f"{name}.chunk"


@settings(max_examples=50, deadline=None)
@given(st.lists(NAMES, max_size=6, unique=True), NAMES, st.integers(0, 300))
async def test_every_prefix_lists_what_it_should(names: list[str], other: str, cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as root:
        storage = FilesystemChunkStorage(Path(root))
        for name in names:
            await storage.write(name, offset=0, data=[b"x"])
        for name in [*names, other]:
            prefix = name[:cut]
            expected = sorted(name for name in names if name.startswith(prefix))
            assert [chunk.name for chunk in await storage.list_chunks(prefix)] == expected
        storage.close()


async def test_a_name_never_leaves_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    storage = FilesystemChunkStorage(root)
    for name in ["../out", "/etc/x", "..", "a/../../out", ".", "./a", "a/./b"]:
        await storage.write(name, offset=0, data=[b"x"])
        assert await storage.read(name, offset=0, length=1) == b"x"
    assert os.listdir(tmp_path) == ["root"]
    assert len(await storage.list_chunks("")) == 7
    storage.close()


async def test_directories_go_with_their_last_chunk(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    await storage.write("a/b/c", offset=0, data=[b"x"])
    await storage.write("a/d", offset=0, data=[b"x"])
    await storage.delete("a/b/c")
    assert sorted(os.listdir(tmp_path / "a")) == ["d.chunk"]
    await storage.delete("a/d")
    assert os.listdir(tmp_path) == []
    storage.close()


async def test_an_unfinished_chunk_is_not_listed_and_is_overwritten(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    (tmp_path / "a.chunk%new").write_bytes(b"left by a crash, and longer than what follows")
    assert await storage.list_chunks("") == []
    with pytest.raises(ChunkNotFoundError):
        await storage.info("a")
    await storage.write("a", offset=0, data=[b"new"])
    assert await storage.read("a", offset=0, length=3) == b"new"
    assert (await storage.info("a")).length == 3
    (tmp_path / "b.chunk%new").write_bytes(b"left")
    await storage.delete("b")
    assert os.listdir(tmp_path) == ["a.chunk"]
    storage.close()


async def test_open_files_are_bounded(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path, kept_files_max=5)
    before = len(list_open_files(tmp_path))
    for number in range(30):
        await storage.write(f"c{number}", offset=0, data=[b"x"])
        await storage.write(f"c{number}", offset=1, data=[b"y"])
    assert len(list_open_files(tmp_path)) <= before + 5
    for number in range(30):
        assert await storage.read(f"c{number}", offset=0, length=2) == b"xy"
    storage.close()
    assert len(list_open_files(tmp_path)) <= before


def test_a_dropped_file_is_closed_when_its_last_user_ends(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    files = OpenFiles(str(tmp_path), files_max=5)
    with files.use("file") as first, files.use("file") as second:
        assert first is second
        files.drop("file")
        assert os.pread(first.descriptor, 7, 0) == b"content"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first.descriptor)


async def test_a_read_only_file_system_is_read_and_written_when_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await FilesystemChunkStorage(tmp_path).write("c", offset=0, data=[bytes(1_000_000)])
    storage = FilesystemChunkStorage(tmp_path)
    before = len(list_open_files(tmp_path))
    open_file, is_read_only = os.open, True

    def open_if_allowed(path: str, flags: int, *mode: int) -> int:
        if is_read_only and flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return open_file(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_if_allowed)
    for length in (10, 1_000_000):
        assert await storage.read("c", offset=0, length=length) == bytes(length)
    with pytest.raises(StorageError, match="cannot write c: Read-only file system"):
        await storage.write("c", offset=1_000_000, data=[b"x"])
    assert len(list_open_files(tmp_path)) <= before
    is_read_only = False
    await storage.write("c", offset=1_000_000, data=[b"x"])
    assert await storage.read("c", offset=999_999, length=2) == b"\0x"
    storage.close()


async def test_what_another_process_left_is_synced_before_it_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = FilesystemChunkStorage(tmp_path)
    await earlier.write("s/t/0$0", offset=0, data=[b"x"])
    earlier.close()
    synced: list[str] = []

    def note(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))

    storage = FilesystemChunkStorage(tmp_path)
    monkeypatch.setattr(os, "fdatasync", note)
    monkeypatch.setattr(os, "fsync", note)
    await storage.list_chunks("s/t/0$")
    assert synced == ["s/t/0$0.chunk", "s/t", "s", "."]
    await storage.list_chunks("s/")
    await storage.info("s/t/0$0")
    assert len(synced) == 4
    await storage.write("s/t/1$0", offset=0, data=[b"y"])
    assert synced[4:] == ["s/t/1$0.chunk%new", "s/t"]
    await storage.list_chunks("s/")
    assert len(synced) <= 7
    storage.close()


async def test_what_a_failed_write_left_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    storage = FilesystemChunkStorage(tmp_path)
    await storage.write("a", offset=0, data=[b"durable"])
    for _ in range(2):
        with monkeypatch.context() as patches:
            patches.setattr(os, "fdatasync", fail)
            with pytest.raises(StorageError, match="cannot write a"):
                await storage.write("a", offset=7, data=[b", doubtful"])
        assert (await storage.info("a")).length == 7
        assert [chunk.length for chunk in await storage.list_chunks("")] == [7]
    await storage.write("a", offset=7, data=[b", durable again"])
    assert (await storage.info("a")).length == 22
    assert await storage.read("a", offset=0, length=22) == b"durable, durable again"
    storage.close()


def failing(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_what_a_failed_sync_left_is_not_counted_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    await storage.write("a", offset=0, data=[b"durable"])
    with monkeypatch.context() as patches:
        patches.setattr(os, "fdatasync", failing)
        with pytest.raises(StorageError, match="cannot write a"):
            await storage.write("a", offset=7, data=[b", doubtful"])
    # The kernel would give the bytes to whoever asks, and sync the file without a complaint.
    storage.close()
    later = FilesystemChunkStorage(tmp_path)
    assert (await later.info("a")).length == 7
    assert await later.read("a", offset=0, length=7) == b"durable"
    later.close()


@pytest.mark.parametrize("broken", ["ftruncate", "fsync"])
async def test_what_cannot_be_cut_off_after_a_failed_sync_is_noted_for_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    root, doubts = tmp_path / "tier 2", DoubtNotes(tmp_path / "doubts")
    root.mkdir()
    storage = FilesystemChunkStorage(root, doubts=doubts)
    await storage.write("s/a b", offset=0, data=[b"durable"])
    real = getattr(os, broken)

    def fail_below_root(descriptor: int, *rest: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(root)):
            failing()
        real(descriptor, *rest)

    with monkeypatch.context() as patches:
        patches.setattr(os, "fdatasync", failing)
        patches.setattr(os, broken, fail_below_root)
        with pytest.raises(StorageError, match="cannot write s/a b"):
            await storage.write("s/a b", offset=7, data=[b", doubtful"])
        storage.close()
        # As long as the disk is like that, the note is what counts.
        for _ in range(2):
            later = FilesystemChunkStorage(root, doubts=doubts)
            assert later._stored("s/a%20b.chunk", 17) == 7
            later.close()
    later = FilesystemChunkStorage(root, doubts=doubts)
    assert not doubts.read()
    assert (root / "s" / "a%20b.chunk").read_bytes() == b"durable"
    assert (await later.info("s/a b")).length == 7
    later.close()


@pytest.mark.parametrize("repeated", ["at once", "after a restart", "after a deletion"])
async def test_what_is_written_after_a_doubt_was_noted_is_not_cut_off_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeated: str
) -> None:
    root, doubts = tmp_path / "tier 2", DoubtNotes(tmp_path / "doubts")
    root.mkdir()
    storage = FilesystemChunkStorage(root, doubts=doubts)
    for name in ("a", "b"):
        await storage.write(name, offset=0, data=[b"durable"])
    with monkeypatch.context() as patches:
        patches.setattr(os, "fdatasync", failing)
        patches.setattr(os, "ftruncate", failing)
        for name in ("a", "b"):
            with pytest.raises(StorageError, match=f"cannot write {name}"):
                await storage.write(name, offset=7, data=[b", doubtful"])
        if repeated == "after a restart":
            storage.close()
            storage = FilesystemChunkStorage(root, doubts=doubts)
    if repeated == "after a deletion":
        await storage.delete("a")
        await storage.write("a", offset=0, data=[b"durable"])
    await storage.write("a", offset=7, data=[b", repeated"])
    assert doubts.read() == {"b.chunk": 7}
    storage.close()
    later = FilesystemChunkStorage(root, doubts=doubts)
    assert (root / "a.chunk").read_bytes() == b"durable, repeated"
    assert (await later.info("a")).length == 17
    assert (root / "b.chunk").read_bytes() == b"durable"
    later.close()


async def test_a_write_whose_doubt_cannot_be_cleared_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, doubts = tmp_path / "tier 2", DoubtNotes(tmp_path / "doubts")
    root.mkdir()
    storage = FilesystemChunkStorage(root, doubts=doubts)
    await storage.write("a", offset=0, data=[b"durable"])
    with monkeypatch.context() as patches:
        patches.setattr(os, "fdatasync", failing)
        patches.setattr(os, "ftruncate", failing)
        with pytest.raises(StorageError, match="cannot write a"):
            await storage.write("a", offset=7, data=[b", doubtful"])
    with monkeypatch.context() as patches:
        patches.setattr(doubts, "clear", failing)
        with pytest.raises(StorageError, match="cannot write a"):
            await storage.write("a", offset=7, data=[b", repeated"])
    assert (await storage.info("a")).length == 7
    await storage.write("a", offset=7, data=[b", repeated"])
    assert not doubts.read()
    assert (await storage.info("a")).length == 17
    storage.close()


async def test_a_chunk_whose_name_may_not_be_durable_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    await storage.write("s/a", offset=0, data=[b"x"])
    with monkeypatch.context() as patches:
        patches.setattr(storage, "_sync_directory", failing)
        with pytest.raises(StorageError, match="cannot write s/b"):
            await storage.write("s/b", offset=0, data=[b"y"])
    for each in (storage, FilesystemChunkStorage(tmp_path)):
        assert [chunk.name for chunk in await each.list_chunks("")] == ["s/a"]
        each.close()


async def test_a_directory_whose_sync_failed_is_synced_before_anything_counts_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s").mkdir()  # by a process that was killed then
    storage = FilesystemChunkStorage(tmp_path)
    synced: list[str] = []
    sync = storage._sync_directory

    def note(directory: str) -> None:
        synced.append(directory)
        sync(directory)

    monkeypatch.setattr(storage, "_sync_directory", failing)
    with pytest.raises(StorageError):
        await storage.write("s/t/a", offset=0, data=[b"x"])
    monkeypatch.setattr(storage, "_sync_directory", note)
    await storage.write("s/t/a", offset=0, data=[b"x"])
    assert synced == ["", "s", "s/t"]
    await storage.write("s/t/b", offset=0, data=[b"x"])
    assert synced[3:] == ["s/t"]
    await storage.delete("s/t/a")
    await storage.delete("s/t/b")
    synced.clear()
    await storage.write("s/t/c", offset=0, data=[b"x"])
    assert synced == ["", "s", "s/t"]
    storage.close()


async def test_another_process_sees_what_was_written(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    await storage.write("s/c$0", offset=0, data=[b"raw ", b"bytes"])
    storage.close()
    assert (tmp_path / "s" / "c$0.chunk").read_bytes() == b"raw bytes"


@pytest.mark.processes
def test_a_full_disk_is_a_storage_error_with_a_sentence(tmp_path: Path) -> None:
    script = """
import resource, signal, sys, trio
from pathlib import Path
from segstore.errors import StorageError
from segstore.tiers.files.filesystem import FilesystemChunkStorage
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
async def main():
    storage = FilesystemChunkStorage(Path(sys.argv[1]))
    await storage.write("a", offset=0, data=[b"x" * 60_000])
    for name, offset in (("a", 60_000), ("b", 0)):
        try:
            await storage.write(name, offset=offset, data=[b"x" * 120_000])
        except StorageError as error:
            print(error)
    assert (await storage.info("a")).length >= 60_000
    assert [chunk.name for chunk in await storage.list_chunks("")] == ["a"]
    await storage.write("a", offset=60_000, data=[b"y" * 10])
    assert await storage.read("a", offset=59_999, length=11) == b"x" + b"y" * 10
trio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    reason = os.strerror(errno.EFBIG)
    assert done.stdout.splitlines() == [
        f"tier 2 in {tmp_path} cannot write a: {reason}",
        f"tier 2 in {tmp_path} cannot write b: {reason}",
    ]


async def test_a_lost_root_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    storage = FilesystemChunkStorage(tmp_path / "file")
    with pytest.raises(StorageError, match="cannot write a"):
        await storage.write("a", offset=0, data=[b"x"])


@pytest.mark.parametrize("length", [10, 2_000_000])
async def test_a_lack_of_memory_is_an_error_of_the_call_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    def find_no_memory(descriptor: int) -> None:
        raise MemoryError

    with closing(FilesystemChunkStorage(tmp_path)) as storage:
        await storage.write("a", offset=0, data=[b"data"])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", find_no_memory)
            with pytest.raises(StorageError, match="cannot write a: Cannot allocate memory"):
                await storage.write("a", offset=4, data=[bytes(length)])
        assert (await storage.info("a")).length == 4
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", find_no_memory)
            with pytest.raises(StorageError, match="cannot write b: Cannot allocate memory"):
                await storage.write("b", offset=0, data=[bytes(length)])
        assert [each.name for each in await storage.list_chunks("")] == ["a"]


@pytest.mark.processes
async def test_a_full_disk_is_told_by_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    with (
        small_disk(path, size_bytes=256 * 1024),
        closing(FilesystemChunkStorage(path)) as storage,
    ):
        await storage.write("a", offset=0, data=[b"x" * 100_000])
        with pytest.raises(StorageFullError, match="cannot write b") as caught:
            await storage.write("b", offset=0, data=[b"x" * 400_000])
        assert caught.value.reason == f"the disk of {path} is full"
        await storage.delete("a")
        await storage.write("b", offset=0, data=[b"x" * 100_000])


@pytest.mark.processes
async def test_a_disk_without_inodes_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    with (
        small_disk(path, size_bytes=1024 * 1024, inodes_max=8),
        closing(FilesystemChunkStorage(path)) as storage,
    ):

        async def write_files() -> None:
            for number in range(8):
                await storage.write(f"c{number}", offset=0, data=[b"x"])

        with pytest.raises(StorageFullError) as caught:
            await write_files()
        assert caught.value.reason.startswith(f"the disk of {path} is full: it has no inode")
