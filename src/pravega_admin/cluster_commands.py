"""``segstore cluster``: status, wait; and ``segstore check``: segment-store, controller.

Owns: the arguments and the output of these verbs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from pravega_admin.addresses import parse_host_port, parse_host_ports
from pravega_admin.options import LedgersOption, OutputOption
from pravega_admin.output import OutputFormat, print_message, print_rows, report, status_line
from pravega_blocking.errors import (
    ConflictError,
    PravegaError,
    TimedOutError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from pravega_admin.cluster_state import ClusterState

app = typer.Typer(no_args_is_help=True, help="See what a cluster is made of, and wait for it.")
check_app = typer.Typer(no_args_is_help=True, help="Ask one server whether it serves.")

CLUSTER = "pravega-cluster"
ANSWER_SECONDS = 5.0
LOOK_SECONDS = 1.0
_COLUMNS = ("kind", "address", "state", "containers", "not_served")

ZookeeperOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--zookeeper",
        envvar="SEGSTORE_ZOOKEEPER",
        metavar="HOST:PORT,...",
        help="The ZooKeeper servers of the cluster.",
    ),
]
NameOption: TypeAlias = Annotated[
    str, typer.Option("--cluster", envvar="SEGSTORE_CLUSTER", metavar="NAME", help="Its name.")
]
AnswerOption: TypeAlias = Annotated[
    float,
    typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long a server may take."),
]
AddressArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="Where the server listens.")
]


@app.command()
def status(
    zookeeper: ZookeeperOption,
    cluster: NameOption = CLUSTER,
    bookkeeper_ledgers: LedgersOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List segment stores, controllers and bookies; exit code 6 if a container is not served."""
    state = _read_cluster(zookeeper, cluster, bookkeeper_ledgers)
    rows = [
        {
            "kind": each.kind,
            "address": each.address,
            "state": each.state,
            "containers": each.containers,
            "not_served": tuple(sorted(set(each.containers) - each.served)),
        }
        for each in state.members
    ]
    print_rows(rows, _COLUMNS, output)
    if missing := state.missing():
        raise ConflictError(_describe_missing(cluster, missing))


@app.command()
def wait(
    zookeeper: ZookeeperOption,
    cluster: NameOption = CLUSTER,
    bookkeeper_ledgers: LedgersOption = None,
    stores: Annotated[int, typer.Option(min=1, help="Segment stores that have to serve.")] = 1,
    controllers: Annotated[int, typer.Option(min=1, help="Controllers that have to serve.")] = 1,
    bookies: Annotated[int, typer.Option(min=0, help="Bookies that have to take writes.")] = 0,
    timeout: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="How long to wait at most.")
    ] = 120.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Wait until so many serve, and all containers are served; exit code 7 if that takes longer."""
    began = time.monotonic()
    with status_line(f"waiting for cluster {cluster}") as show:
        while missing := _look_for_missing(
            zookeeper,
            cluster,
            bookkeeper_ledgers,
            {"stores": stores, "controllers": controllers, "bookies": bookies},
        ):
            show(_describe_missing(cluster, missing))
            if time.monotonic() - began > timeout:
                raise TimedOutError(f"{_describe_missing(cluster, missing)}, after {timeout:g} s")
            time.sleep(LOOK_SECONDS)
    seconds = time.monotonic() - began
    sentence = f"cluster {cluster} is whole: all containers are served"
    report(sentence, {"cluster": cluster, "seconds": round(seconds, 3)}, output)


@check_app.command("segment-store")
def check_segment_store(address: AddressArgument, timeout: AnswerOption = ANSWER_SECONDS) -> None:
    """Check that a segment store serves."""
    from pravega_admin.server_checks import ask_segment_store

    host, port = parse_host_port(address)
    ask_segment_store(host, port, seconds_max=timeout)
    print_message(f"{address} serves")


@check_app.command("controller")
def check_controller(address: AddressArgument, timeout: AnswerOption = ANSWER_SECONDS) -> None:
    """Check that a controller serves."""
    from pravega_admin.server_checks import ask_controller

    host, port = parse_host_port(address)
    ask_controller(host, port, seconds_max=timeout)
    print_message(f"{address} serves")


def _describe_missing(cluster: str, missing: Sequence[str]) -> str:
    return f"cluster {cluster} is not whole: {'; '.join(missing)}"


def _look_for_missing(
    zookeeper: str, cluster: str, ledgers_root: str | None, wanted: dict[str, int]
) -> list[str]:
    """Return what the cluster lacks, in words; also that ZooKeeper does not answer."""
    try:
        return _read_cluster(zookeeper, cluster, ledgers_root).missing(**wanted)
    except UnavailableError as error:
        return [str(error)]


def _read_cluster(zookeeper: str, cluster: str, ledgers_root: str | None) -> ClusterState:
    """Return the present state of a cluster. Raises ``PravegaError``."""
    import logging

    import trio

    from pravega_admin.cluster_state import look_at_cluster
    from pravega_cluster.records import ClusterRecordError
    from zookeeper_client.api import ZooKeeperError
    from zookeeper_client.kazoo_session import open_zookeeper

    parse_host_ports(zookeeper)
    # It reports each unreachable server.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)

    async def look() -> ClusterState | Exception:
        async with trio.open_nursery() as nursery:
            try:
                async with open_zookeeper(
                    zookeeper, nursery, connect_seconds_max=ANSWER_SECONDS
                ) as session:
                    found: ClusterState | Exception = await look_at_cluster(
                        session, cluster, ledgers_root=ledgers_root, seconds_max=ANSWER_SECONDS
                    )
            except (PravegaError, ClusterRecordError) as error:
                found = error
            except ZooKeeperError as error:
                found = UnavailableError(f"ZooKeeper cannot be asked: {error}")
            # Otherwise it would wait for the session's timer.
            nursery.cancel_scope.cancel()
        return found

    found = trio.run(look)
    if isinstance(found, ClusterRecordError):
        raise UsageError(str(found)) from found
    if isinstance(found, Exception):
        raise found
    return found
