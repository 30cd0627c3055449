"""A process that writes a journal on a real disk is killed; the next finds what it was told."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from segstore.tiers.journal import JournalSettings, open_journal

pytestmark = pytest.mark.processes

WRITER = """
import os, random, sys, trio
from pathlib import Path
from segstore.tiers.journal import JournalSettings, open_journal

settings = JournalSettings(file_bytes=2**21, journal_bytes_max=2**25)

async def main():
    async with open_journal(Path(sys.argv[1]), settings) as journal:
        logs = [await journal.open_log(container) for container in range(2)]
        found = [[e.address.position async for e in log.read()] for log in logs]
        print("found", *(f"{p[0]}-{p[-1]}" if p else "none" for p in found), flush=True)
        async with trio.open_nursery() as nursery:
            for container, log in enumerate(logs):
                nursery.start_soon(work, container, log)

async def work(container, log):
    while True:
        durable = trio.Event()

        def on_durable(error):
            assert error is None
            os.write(1, f"durable {container} {address.position}\\n".encode())
            durable.set()

        data = container.to_bytes(1, "little") * random.choice([10, 1000, 60000])
        address = log.append_nowait([data], on_durable)
        await durable.wait()
        if address.position % 50 == 0:
            await log.truncate(address)

trio.run(main)
"""


def write_until_killed(directory: Path, acknowledged: dict[int, int]) -> None:
    """Let a writer find what is there and write for a moment, and kill it."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True
    ) as writer:
        try:
            assert writer.stdout is not None
            for line in writer.stdout:
                if line.startswith("found"):
                    break
            for container, positions in enumerate(line.split()[1:]):
                last = 0 if positions == "none" else int(positions.partition("-")[2])
                assert last >= acknowledged[container]
            time.sleep(random.uniform(0.05, 0.4))
        finally:
            writer.send_signal(signal.SIGKILL)
        for line in writer.stdout:
            if line.startswith("durable") and line.endswith("\n"):
                _, container_text, position = line.split()
                acknowledged[int(container_text)] = int(position)


def test_what_was_acknowledged_survives_the_kill_of_the_process(tmp_path: Path) -> None:
    acknowledged = {0: 0, 1: 0}
    for _ in range(4):
        write_until_killed(tmp_path, acknowledged)
    assert min(acknowledged.values()) > 0

    async def check() -> None:
        settings = JournalSettings(file_bytes=2**21, journal_bytes_max=2**25)
        async with open_journal(tmp_path, settings) as journal:
            for container, last in acknowledged.items():
                log = await journal.open_log(container)
                entries = [entry async for entry in log.read()]
                assert entries[-1].address.position >= last
                assert all(set(entry.data) == {container} for entry in entries)

    trio.run(check)
