"""A cluster on one machine, in the foreground: ``make cluster ARGS=--help``.

ZooKeeper, bookies, segment stores and controllers, each a process with a pid file in
``<data-dir>/run`` and a log in ``<data-dir>/log``. Those that die are started again. Ctrl-C ends
all; a second start goes on with the data.

The jars of ZooKeeper and BookKeeper come from Maven, once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from deploy.one_machine.parts import (
    HOST,
    ClusterSettings,
    list_parts,
    write_settings_files,
)
from deploy.one_machine.security import (
    ClusterSecurity,
    check_openness,
    open_cluster_security,
)
from foreign_servers.maven import MavenFailedError, resolve_class_path

from pravega_admin.errors import EXIT_OK, AdminError, ConfigurationError, report_error
from pravega_admin.output.standard_streams import run_command
from pravega_admin.serving.data_directory import tell_wait
from pravega_admin.serving.standalone import check_port, describe_secure_clients
from pravega_admin.supervisor.run_directory import RunDirectory
from pravega_admin.supervisor.supervise import end_by_signals
from pravega_admin.supervisor.supervisor import Supervisor
from pravega_admin.supervisor.terminal import print_at_once
from segstore.ownership.holders import HeldError, take_lock, write_holder

POM = Path(__file__).resolve().parent / "pom.xml"
SELF = "cluster"
COUNTS = {
    "stores": "segment stores",
    "controllers": "controllers",
    "bookies": "bookies, at least 3",
    "containers": "containers, which the segment stores share; it never changes afterwards",
}
"""The numbers to choose, and what each is of."""
PORTS = {
    "zookeeper": "where ZooKeeper listens",
    "bookie": "where the first bookie listens; each other one has the port after the one before",
    "store": "the same for segment stores",
    "controller": "the same for controllers",
}
"""The ports to choose, and whose each is."""
DEFAULT = " (default: %(default)s)"


def main(arguments: list[str] | None = None) -> int:
    """Run a cluster until told to end; the exit code."""
    try:
        settings, restarts = parse_arguments(arguments)
        print("looking for the jars of ZooKeeper and BookKeeper", flush=True)
        class_path = resolve_class_path(POM)
        with open_directory(settings) as directory:
            for option, ports in settings.ports().items():
                for port in ports:
                    check_port(HOST, port, option)
            security = open_given_security(settings)
            write_settings_files(settings, security)
            run(settings, class_path, directory, security, restarts=restarts)
    except MavenFailedError as error:
        return report_error(AdminError(str(error)))
    except (AdminError, KeyboardInterrupt) as error:
        return report_error(error)
    return EXIT_OK


def parse_arguments(arguments: list[str] | None) -> tuple[ClusterSettings, bool]:
    """Parse the wanted cluster, and whether processes that die are started again."""
    parser = argparse.ArgumentParser(
        prog="make cluster",
        usage='make cluster ARGS="[options]"',
        description=(__doc__ or "").partition("\n\n")[2],
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path("cluster"),
        metavar="PATH",
        help=f"where all is kept{DEFAULT}",
    )
    usual = ClusterSettings(Path())
    parser.add_argument(
        "--name",
        default=usual.name,
        help=f"the cluster's name, which is a path in ZooKeeper{DEFAULT}",
    )
    for option, text in COUNTS.items():
        default = getattr(usual, option)
        parser.add_argument(
            f"--{option}", type=int, default=default, metavar="N", help=text + DEFAULT
        )
    for option, text in PORTS.items():
        default = getattr(usual, f"{option}_port")
        parser.add_argument(
            f"--{option}-port", type=int, default=default, metavar="PORT", help=text + DEFAULT
        )
    parser.add_argument(
        "--program",
        type=Path,
        default=usual.program,
        metavar="PATH",
        help="what segment stores and controllers are started by, each time anew, so that it may"
        f" be a link to another version's then{DEFAULT}",
    )
    parser.add_argument(
        "--detour",
        action="append",
        default=[],
        metavar="PROCESS=HOST",
        help="publish a segment store (segment-store-0), or let a process dial ZooKeeper"
        " (bookie-1/zookeeper), at this host, where a proxy listens on the same port",
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="speak TLS, and serve users by their rights; a first start makes the certificates,"
        " the keys of tokens and the user admin in the directory",
    )
    parser.add_argument("--no-restart", action="store_true", help="what dies stays down")
    given = vars(parser.parse_args(arguments))
    restarts = not given.pop("no_restart")
    given["data_dir"] = given["data_dir"].resolve()
    # A link stays one.
    given["program"] = given["program"].absolute()
    detours = [each.partition("=") for each in given.pop("detour")]
    if not all(name and host for name, _, host in detours):
        parser.error("--detour wants PROCESS=HOST")
    given["detours"] = {name: host for name, _, host in detours}
    if min(given["stores"], given["controllers"], given["containers"]) < 1 or given["bookies"] < 3:
        parser.error("a cluster has at least 3 bookies and one of everything else")
    return ClusterSettings(**given), restarts


@contextlib.contextmanager
def open_directory(settings: ClusterSettings) -> Iterator[RunDirectory]:
    """Lock the run directory, so that only this process runs the cluster. Waits for one that ends.

    Raises ``ConfigurationError``.
    """
    run_path = settings.data_dir / "run"
    try:
        run_path.mkdir(parents=True, exist_ok=True)
        lock = os.open(run_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(f"{run_path} cannot be used: {error.strerror}") from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, lock)
        try:
            take_lock(lock, f"the cluster in {settings.data_dir}", tell=tell_wait)
            write_holder(lock)
        except HeldError as error:
            raise ConfigurationError(str(error)) from error
        except OSError as error:
            raise ConfigurationError(f"{run_path} cannot be used: {error.strerror}") from error
        directory = RunDirectory(run_path, lock)
        directory.write_pid(SELF, os.getpid())
        try:
            yield directory
        finally:
            directory.remove_pid(SELF)


def open_given_security(settings: ClusterSettings) -> ClusterSecurity | None:
    """Make or find the files of a secure cluster; return None for one that is open to everybody.

    Raises ``ConfigurationError``, also for a secure cluster that would be opened to everybody.
    """
    if not settings.secure:
        check_openness(settings.data_dir)
        return None
    hosts = dict.fromkeys((HOST, *settings.detours.values()))
    return open_cluster_security(settings.data_dir, list(hosts))


def run(
    settings: ClusterSettings,
    class_path: str,
    directory: RunDirectory,
    security: ClusterSecurity | None,
    *,
    restarts: bool,
) -> None:
    """Start everything, tell when it is ready, and keep it running until a signal comes."""
    print("starting ZooKeeper, bookies, segment stores and controllers", flush=True)
    supervisor = Supervisor(
        list_parts(settings, class_path, security),
        directory=directory,
        report=lambda sentence: print_at_once(sentence, sys.stderr),
        restarts=restarts,
        # One part that cannot start ends no other.
        lasts=True,
    )
    end_by_signals(supervisor)
    supervisor.run(on_ready=lambda: welcome(settings, security))


def welcome(settings: ClusterSettings, security: ClusterSecurity | None) -> None:
    """Tell that the cluster is ready, and where it is."""
    lines = [
        f"  all controllers  {settings.controller_uri}",
        f"  ZooKeeper        {settings.zookeeper}, cluster {settings.name}",
        f"  process ids      {settings.data_dir / 'run'}, logs in {settings.data_dir / 'log'}",
    ]
    if security is not None:
        lines += [describe_secure_clients(settings.controller_uri, security.files), ""]
    lines.append(f"cluster is ready: {settings.first_controller_uri}")
    print_at_once("\n".join(lines), sys.stdout)


if __name__ == "__main__":
    run_command(lambda: sys.exit(main()))
