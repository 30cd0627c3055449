"""A cluster on one machine, in the foreground: ``python -m deploy.one_machine --help``.

ZooKeeper, bookies, segment stores and controllers, each a process with a pid file in
``<data-dir>/run`` and a log in ``<data-dir>/log``. Those that die are started again. Ctrl-C ends
all; a second start goes on with the data.

The jars of ZooKeeper and BookKeeper come from Maven, once.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO

from benchmarks.maven import MavenFailedError, resolve_class_path
from deploy.one_machine.parts import (
    HOST,
    ClusterSettings,
    format_command,
    list_parts,
    write_settings_files,
)
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from pravega_admin.errors import EXIT_OK, AdminError, ConfigurationError, report_error
from pravega_admin.run_directory import RunDirectory
from pravega_admin.standalone import check_port
from pravega_admin.supervisor.child_process import ChildProcess, ChildSpec, spawn
from pravega_admin.supervisor.supervisor import Supervisor

POM = Path(__file__).resolve().parent / "pom.xml"
SELF = "cluster"
ZOOKEEPER_SECONDS_MAX = 60.0
FORMAT_SECONDS_MAX = 120.0
POLL_SECONDS = 0.1
LOCK_SECONDS_MAX = 3.0
LOCK_POLL_SECONDS = 0.05


def main(arguments: list[str] | None = None) -> int:
    """Run a cluster until told to end; the exit code."""
    # It tells of each connection that is not there yet.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    try:
        settings, restarts = parse_arguments(arguments)
        print("looking for the jars of ZooKeeper and BookKeeper", flush=True)
        class_path = resolve_class_path(POM)
        with open_directory(settings) as directory:
            for option, ports in settings.ports().items():
                for port in ports:
                    check_port(HOST, port, option)
            write_settings_files(settings)
            run(settings, class_path, directory, restarts=restarts)
    except MavenFailedError as error:
        return report_error(AdminError(str(error)))
    except (AdminError, KeyboardInterrupt) as error:
        return report_error(error)
    return EXIT_OK


def parse_arguments(arguments: list[str] | None) -> tuple[ClusterSettings, bool]:
    """Parse the wanted cluster, and whether processes that die are started again."""
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__.split("\n\n")[0])
    parser.add_argument("--data-dir", type=Path, default=Path("cluster"), help="where all is kept")
    usual = ClusterSettings(Path())
    parser.add_argument("--name", default=usual.name)
    for option in ("stores", "controllers", "bookies", "containers"):
        default = getattr(usual, option)
        parser.add_argument(f"--{option}", type=int, default=default, metavar="N")
    for option in ("zookeeper", "bookie", "store", "controller"):
        default = getattr(usual, f"{option}_port")
        parser.add_argument(f"--{option}-port", type=int, default=default, metavar="PORT")
    parser.add_argument(
        "--detour",
        action="append",
        default=[],
        metavar="PROCESS=HOST",
        help="publish a segment store (segment-store-0), or let a process dial ZooKeeper"
        " (bookie-1/zookeeper), at this host, where a proxy listens on the same port",
    )
    parser.add_argument("--no-restart", action="store_true", help="what dies stays down")
    given = vars(parser.parse_args(arguments))
    restarts = not given.pop("no_restart")
    given["data_dir"] = given["data_dir"].resolve()
    detours = [each.partition("=") for each in given.pop("detour")]
    if not all(name and host for name, _, host in detours):
        parser.error("--detour wants PROCESS=HOST")
    given["detours"] = {name: host for name, _, host in detours}
    if min(given["stores"], given["controllers"], given["containers"]) < 1 or given["bookies"] < 3:
        parser.error("a cluster has at least 3 bookies and one of everything else")
    return ClusterSettings(**given), restarts


@contextlib.contextmanager
def open_directory(settings: ClusterSettings) -> Iterator[RunDirectory]:
    """Lock the run directory, so that only this process runs the cluster.

    Raises ``ConfigurationError``.
    """
    run_path = settings.data_dir / "run"
    try:
        run_path.mkdir(parents=True, exist_ok=True)
        lock = (run_path / "lock").open("ab")
    except OSError as error:
        raise ConfigurationError(f"{run_path} cannot be used: {error.strerror}") from error
    with lock:
        _take_lock(lock, settings)
        directory = RunDirectory(run_path, lock.fileno())
        directory.write_pid(SELF, os.getpid())
        try:
            yield directory
        finally:
            directory.remove_pid(SELF)


def _take_lock(lock: IO[bytes], settings: ClusterSettings) -> None:
    """Lock the directory; wait for processes of a killed cluster, which end soon after it.

    ``ConfigurationError`` where it stays locked for ``LOCK_SECONDS_MAX``.
    """
    deadline = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                sentence = f"{settings.data_dir} is in use by another cluster"
                raise ConfigurationError(sentence) from error
        time.sleep(LOCK_POLL_SECONDS)


def run(
    settings: ClusterSettings, class_path: str, directory: RunDirectory, *, restarts: bool
) -> None:
    """Start everything, tell when it is ready, and keep it running until a signal comes."""
    parts = list_parts(settings, class_path)
    print("starting ZooKeeper, bookies, segment stores and controllers", flush=True)
    with start_zookeeper(parts[0], settings, directory) as zookeeper:
        format_once(settings, class_path)
        supervisor = Supervisor(
            parts,
            directory=directory,
            report=lambda sentence: print(sentence, file=sys.stderr, flush=True),
            started=[zookeeper],
            restarts=restarts,
        )
        signals = 0

        def end(number: int, frame: FrameType | None) -> None:
            nonlocal signals
            signals += 1
            if signals == 1:
                print("stopping; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)
                supervisor.stop()
            else:
                supervisor.kill_all()

        signal.signal(signal.SIGINT, end)
        signal.signal(signal.SIGTERM, end)
        # From here on the supervisor ends it.
        supervisor.run(on_ready=lambda: welcome(settings))


def welcome(settings: ClusterSettings) -> None:
    """Tell that the cluster is ready, and where it is."""
    first = f"tcp://{HOST}:{settings.controller_port}"
    print(f"  all controllers  {settings.controller_uri}")
    print(f"  ZooKeeper        {settings.zookeeper}, cluster {settings.name}")
    print(f"  process ids      {settings.data_dir / 'run'}, logs in {settings.data_dir / 'log'}")
    print(f"cluster is ready: {first}", flush=True)


@contextlib.contextmanager
def start_zookeeper(
    part: ChildSpec, settings: ClusterSettings, directory: RunDirectory
) -> Iterator[ChildProcess]:
    """Start a ZooKeeper that answers. An error ends it before the supervisor takes care of it."""
    process = spawn(part, directory)
    try:
        deadline = time.monotonic() + ZOOKEEPER_SECONDS_MAX
        while not accepts(settings.zookeeper_port):
            if process.poll() is not None or time.monotonic() > deadline:
                log = settings.data_dir / "log" / "zookeeper.log"
                raise AdminError(f"ZooKeeper does not start; see {log}")
            time.sleep(POLL_SECONDS)
        yield process
    finally:
        # Of no effect on a process that has been waited for.
        if process.poll() is None:
            process.abandon()
        directory.remove_pid(part.name)


def accepts(port: int) -> bool:
    """Return whether a process listens on the port."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def format_once(settings: ClusterSettings, class_path: str) -> None:
    """Make what bookies need in ZooKeeper, unless it is there from an earlier start."""
    client = KazooClient(hosts=settings.zookeeper)
    try:
        client.start(ZOOKEEPER_SECONDS_MAX)
        if client.exists(f"{settings.ledgers_path}/INSTANCEID"):
            return
        client.ensure_path(settings.ledgers_path.rpartition("/")[0])
    except (KazooException, KazooTimeoutError) as error:
        raise AdminError(f"ZooKeeper does not answer: {error!r}") from error
    finally:
        client.stop()
        client.close()
    log = settings.data_dir / "log" / "format.log"
    with log.open("ab") as output:
        done = subprocess.run(
            format_command(settings, class_path),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=FORMAT_SECONDS_MAX,
            check=False,
        )
    if done.returncode != 0:
        raise AdminError(f"BookKeeper's part of ZooKeeper cannot be made; see {log}")


if __name__ == "__main__":
    sys.exit(main())
