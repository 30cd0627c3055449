"""A segment store whose first journal is on a disk that fails when told to, with a controller.

Run as `python -m compat_harness.failing_store DATA_DIR CONTROLLER_PORT STORE_PORT`. While the file
``FAILING`` is in the data directory, synced writes of journal 0 fail with EIO: its containers, half
of all, go offline. Those of the other journal go on. It is ended by SIGTERM at once, as
a crash would: its journal is there for the next start.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import trio
from foreign_servers.tied_processes import tied

from compat_harness.server import HOST, Server
from segstore.network.server import serve
from segstore.ownership.data_directory import DataDirectory
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.testing.faults.faulty_disk import FaultyDisk

HARNESS = Path(__file__).resolve().parent.parent
FAILING = "failing"
FAILING_JOURNAL = "journal-0"
POLL_SECONDS = 0.01


class FailingServer(Server):
    """Started and stopped like any server under test."""

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        ports = (str(self.controller_port), str(self.segment_store_port))
        command = [sys.executable, "-m", "compat_harness.failing_store", str(self.data_dir), *ports]
        # The packages of this folder's parent and of the one above it.
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(HARNESS.parent))))
        return subprocess.Popen(
            tied(command),
            cwd=HARNESS,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    @contextmanager
    def failing_disk(self) -> Iterator[None]:
        """Make the first journal's disk fail inside the block."""
        flag = self.data_dir / FAILING
        flag.touch()
        try:
            yield
        finally:
            flag.unlink()


def main(arguments: Sequence[str]) -> None:
    """Serve until killed."""
    data_dir, controller_port, segment_store_port = arguments
    config = SegmentStoreConfig(data_dir=Path(data_dir), host=HOST, port=int(segment_store_port))
    command = [sys.executable, "-m", "pravega_admin", "controller", "--port", controller_port]
    command += ["--host", HOST, "--segment-store", f"{HOST}:{segment_store_port}"]
    with subprocess.Popen(tied(command)):
        trio.run(_serve, config)


async def _serve(config: SegmentStoreConfig) -> None:
    DataDirectory.open(config.data_dir, journal_count=2)
    disks: dict[str, FaultyDisk] = {}

    def disk_of(path: Path) -> FaultyDisk:
        return disks.setdefault(path.name, FaultyDisk(path))

    async with (
        open_containers(config, disk_of=disk_of) as open_container,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_follow_flag, config.data_dir / FAILING, disks[FAILING_JOURNAL])
        nursery.start_soon(serve, config, open_container)
        await _wait_until_serving(config.port)
        print("ready", flush=True)
        await trio.sleep_forever()


async def _wait_until_serving(port: int) -> None:
    while True:
        try:
            stream = await trio.open_tcp_stream(HOST, port)
        except OSError:
            await trio.sleep(POLL_SECONDS)
        else:
            await stream.aclose()
            return


async def _follow_flag(flag: Path, disk: FaultyDisk) -> None:
    while True:
        disk.error = errno.EIO if await trio.Path(flag).exists() else None
        await trio.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
