"""``segstore cluster``: status, wait; and ``segstore check``: segment-store, controller.

Owns: the arguments and the output of these verbs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from pravega_admin.errors import COMMAND_LINE
from pravega_admin.logins import (
    SERVER_METAVAR,
    ZOOKEEPER_VARIABLE,
    find_access,
    find_tls,
    find_zookeeper_tls,
)
from pravega_admin.options import LedgersOption, OutputOption
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import OutputFormat, print_message, print_rows, report, status_line
from segstore_client.addresses import parse_host_port, parse_host_ports, parse_server_address
from segstore_client.errors import (
    ConflictError,
    PravegaError,
    TimedOutError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from pravega_admin.inspection.cluster_state import ClusterState

app = Verbs(help="See what a cluster is made of, and wait for it.")
check_app = Verbs(help="Ask one server whether it serves.")

CLUSTER = "pravega-cluster"
ANSWER_SECONDS = 5.0
LOOK_SECONDS = 1.0
_COLUMNS = ("kind", "address", "state", "containers", "not_served", "delays")

ZookeeperOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--zookeeper",
        envvar=ZOOKEEPER_VARIABLE,
        metavar="HOST:PORT,...",
        help="The ZooKeeper servers of the cluster; with tls:// before them if they have TLS.",
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
    str, typer.Argument(metavar=SERVER_METAVAR, help="Where the server listens.")
]


@app.command()
def status(
    zookeeper: ZookeeperOption,
    cluster: NameOption = CLUSTER,
    bookkeeper_ledgers: LedgersOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List segment stores, controllers and bookies; exit code 6 if a container is not served.

    The delays are what a store's requests wait for, such as a full disk.
    """
    state = read_cluster(zookeeper, cluster, bookkeeper_ledgers)
    rows = [
        {
            "kind": each.kind,
            "address": each.address,
            "state": each.state,
            "containers": each.containers,
            "not_served": tuple(sorted(set(each.containers) - each.served)),
            "delays": each.delays or None,
        }
        for each in state.members
    ]
    print_rows(rows, _COLUMNS, output)
    _report_absent_bookies(state)
    if missing := state.missing():
        raise ConflictError(_describe_missing(cluster, missing))
    for mistake in state.mistakes:
        print_message(f"segstore: {mistake}")


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
    """Wait until this many serve, and all containers are served; exit code 7 if that takes
    longer."""
    began = time.monotonic()
    with status_line(f"waiting for cluster {cluster}") as show:
        wanted = {"stores": stores, "controllers": controllers, "bookies": bookies}
        while True:
            state, missing = _look_for_missing(zookeeper, cluster, bookkeeper_ledgers, wanted)
            if not missing:
                break
            show(_describe_missing(cluster, missing))
            if time.monotonic() - began > timeout:
                raise TimedOutError(f"{_describe_missing(cluster, missing)}, after {timeout:g} s")
            time.sleep(LOOK_SECONDS)
    seconds = time.monotonic() - began
    if state is not None:
        _report_absent_bookies(state)
    sentence = f"cluster {cluster} is whole: all containers are served"
    report(sentence, {"cluster": cluster, "seconds": round(seconds, 3)}, output)


@check_app.command("segment-store")
def check_segment_store(address: AddressArgument, timeout: AnswerOption = ANSWER_SECONDS) -> None:
    """Check that a segment store serves; tell what requests wait for, such as a full disk."""
    from pravega_admin.inspection.server_checks import ask_segment_store
    from segstore_client.access.tokens import StoreAccess
    from segstore_client.delays import ask_delays

    place, wants_tls = parse_server_address(address)
    host, port = parse_host_port(place)
    tls = find_tls(wants_tls)
    ask_segment_store(host, port, seconds_max=timeout, tls=tls)
    delays = ask_delays(
        host, port, seconds_max=timeout, access=StoreAccess(tls=tls, words=COMMAND_LINE)
    )
    print_message(
        f"{address} serves, but requests wait: {delays}" if delays else f"{address} serves"
    )


@check_app.command("controller")
def check_controller(address: AddressArgument, timeout: AnswerOption = ANSWER_SECONDS) -> None:
    """Check that a controller serves."""
    from pravega_admin.inspection.server_checks import ask_controller

    place, wants_tls = parse_server_address(address)
    host, port = parse_host_port(place)
    ask_controller(host, port, seconds_max=timeout, tls=find_tls(wants_tls))
    print_message(f"{address} serves")


def _describe_missing(cluster: str, missing: Sequence[str]) -> str:
    return f"cluster {cluster} is not whole: {'; '.join(missing)}"


def _look_for_missing(
    zookeeper: str, cluster: str, ledgers_root: str | None, wanted: dict[str, int]
) -> tuple[ClusterState | None, list[str]]:
    """Return the cluster, and what it lacks, in words; also that ZooKeeper does not answer."""
    try:
        state = read_cluster(zookeeper, cluster, ledgers_root)
    except UnavailableError as error:
        return None, [str(error)]
    return state, state.missing(**wanted)


def _report_absent_bookies(state: ClusterState) -> None:
    if absent := state.absent_bookies:
        print_message(f"segstore: bookies that do not answer: {', '.join(absent)}")


def read_cluster(zookeeper: str, cluster: str, ledgers_root: str | None) -> ClusterState:
    """Return the present state of a cluster. Raises ``PravegaError``."""
    import logging

    import trio

    from pravega_admin.inspection.cluster_state import look_at_cluster
    from pravega_cluster.records import ClusterRecordError
    from zookeeper_client.api import ZooKeeperError
    from zookeeper_client.kazoo_session import open_zookeeper

    servers, wants_tls = parse_server_address(zookeeper)
    parse_host_ports(servers)
    zookeeper_tls = find_zookeeper_tls() if wants_tls else None
    credentials, tls = find_access().credentials, find_tls(None)
    # The ZooKeeper client would log each server that it cannot reach.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)

    async def look() -> ClusterState | Exception:
        async with trio.open_nursery() as nursery:
            try:
                async with open_zookeeper(
                    servers, nursery, connect_seconds_max=ANSWER_SECONDS, tls=zookeeper_tls
                ) as session:
                    found: ClusterState | Exception = await look_at_cluster(
                        session,
                        cluster,
                        ledgers_root=ledgers_root,
                        seconds_max=ANSWER_SECONDS,
                        tls=tls,
                        credentials=credentials,
                    )
            except (PravegaError, ClusterRecordError) as error:
                found = error
            except ZooKeeperError as error:
                found = UnavailableError(f"ZooKeeper cannot be asked: {error}")
            # Otherwise the nursery would wait until the timer of the session ends.
            nursery.cancel_scope.cancel()
        return found

    found = trio.run(look)
    if isinstance(found, ClusterRecordError):
        raise UsageError(str(found)) from found
    if isinstance(found, Exception):
        raise found
    return found
