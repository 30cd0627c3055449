"""Ctrl-C in a job of the pipeline: it ends, says nothing of Java, and leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from compat_harness.server import Server
from foreign_servers.deadlines import scale
from foreign_servers.process_tree import ProcessTree
from foreign_servers.tied_processes import tied

from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import StreamSettings

SECONDS_MAX = scale(120.0)
EXIT_INTERRUPTED = 130

pytestmark = [
    pytest.mark.compat,
    pytest.mark.proof,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("spark"),
]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs_java(tree: ProcessTree) -> bool:
    """Return whether a process of the session has become Java."""
    for pid in tree.process_ids():
        try:
            if os.readlink(f"/proc/{pid}/exe").endswith("/java"):
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("moment", ["while Java starts", "while the query runs"])
def test_an_interrupt_ends_a_job_without_words_and_without_processes(
    store: Server, client: ControllerClient, tmp_path: Path, moment: str
) -> None:
    """The bridge to Java wrote tracebacks, and Java that was starting was left behind."""
    scope = f"interrupts-{moment.split()[1].lower()}"
    client.create_scope(scope)
    client.create_stream(scope, "events", StreamSettings())
    with BlockingEventWriter(client, scope, "events") as writer:
        writer.write(b"event")
    archive = tmp_path / "archive"
    command = [str(Path(sys.executable).parent / "segstore"), "pipeline", "archive"]
    command += [f"{scope}/events", str(archive), "--follow", "--controller", store.controller_uri]
    with subprocess.Popen(
        tied(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as job:
        tree = ProcessTree(frozenset({job.pid}))
        try:
            wait_until(lambda: runs_java(tree))
            if moment == "while the query runs":
                wait_until(lambda: any(archive.rglob("*.parquet")))
            # As a terminal does: to all processes of the job.
            os.killpg(job.pid, signal.SIGINT)
            said, _ = job.communicate(timeout=SECONDS_MAX)
            assert job.returncode == EXIT_INTERRUPTED
            assert said.strip() == ""
            wait_until(lambda: not tree.process_ids())
        finally:
            for pid in tree.process_ids():
                os.kill(pid, signal.SIGKILL)
