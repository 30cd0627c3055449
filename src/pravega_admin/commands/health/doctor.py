"""``segstore doctor``: what is wrong with this machine and its servers, and how to mend it.

Owns: the arguments of this verb, and the exit code by severity.

Invariants:
1. When the worst finding is a warning, the exit code is 9; when it is a fault, it is 10. Held by
   ``test_the_exit_code_is_that_of_the_worst_finding``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pravega_admin.commands.cluster import CLUSTER, NameOption, read_cluster
from pravega_admin.commands.controllers import ControllerOption
from pravega_admin.commands.servers import (
    DataDirOption,
    S3EndpointOption,
    S3RegionOption,
    SettingsOption,
)
from pravega_admin.errors import DoctorFaultError, DoctorWarnsError
from pravega_admin.logins import SERVER_METAVAR, ZOOKEEPER_VARIABLE, find_tls
from pravega_admin.options import LedgersOption, OutputOption
from pravega_admin.output.output import OutputFormat, print_rows, status_line
from pravega_admin.serving.settings_file import read_settings
from pravega_admin.serving.store_settings import DATA_DIR, join_tables
from segstore_client.addresses import (
    DEFAULT_CONTROLLER,
    parse_controller_address,
    parse_host_port,
    parse_server_address,
)

if TYPE_CHECKING:
    from pravega_admin.inspection.findings import Finding

COLUMNS = ("check", "severity", "found", "mend")
BOOKIES_MIN = 3
"""Number of bookies on which a log is, unless the cluster says otherwise."""


def doctor(
    data_dir: DataDirOption = DATA_DIR,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    segment_store: Annotated[
        str,
        typer.Option(
            "--segment-store", metavar=SERVER_METAVAR, help="Where a segment store listens."
        ),
    ] = "localhost:12345",
    zookeeper: Annotated[
        str | None,
        typer.Option(
            "--zookeeper",
            envvar=ZOOKEEPER_VARIABLE,
            metavar="HOST:PORT,...",
            help="The ZooKeeper servers of a cluster, which is then checked, too.",
        ),
    ] = None,
    cluster: NameOption = CLUSTER,
    bookkeeper_ledgers: LedgersOption = None,
    bookies: Annotated[
        int, typer.Option("--bookies", min=1, help="Number of bookies that each log needs.")
    ] = BOOKIES_MIN,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    config: SettingsOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Tell what is wrong with this machine and its servers, and how to mend it.

    Looks at versions, limits, memory, the clock, the disk of the data directory (syncs are
    measured), ports and servers, certificates, tier 2 (a chunk is written, read and deleted), and
    with --zookeeper at the cluster and its bookies. Exit code 9 for warnings, 10 for faults.
    """
    from pravega_admin.inspection.machine_checks import check_machine
    from pravega_admin.inspection.server_findings import (
        check_certificates_in,
        check_cluster,
        check_store,
    )
    from segstore.process.tier_two_vendors import SECTIONS

    file = read_settings(config).get("segment_store", {})
    sections = {name: file[name] for name in SECTIONS if name in file}
    settings = join_tables({"s3": {"endpoint_url": s3_endpoint, "region": s3_region}}, sections)

    def look() -> Iterator[Finding]:
        yield from check_machine(data_dir)
        yield from check_store(data_dir, settings)
        yield from check_certificates_in(data_dir / "security")
        yield from _check_servers(controller, segment_store)
        if zookeeper is not None:
            read = partial(read_cluster, zookeeper, cluster, bookkeeper_ledgers)
            yield from check_cluster(read, bookies)

    _report(look(), output)


def _report(found: Iterator[Finding], output: OutputFormat) -> None:
    """Print the findings; raise the error of the worst one."""
    from pravega_admin.inspection.findings import Severity, worst_of

    findings = []
    with status_line("looking at this machine") as show:
        for each in found:
            findings.append(each)
            show(f"{each.check}: {each.found}")
    rows = [
        {
            "check": each.check,
            "severity": each.severity.value,
            "found": each.found,
            "mend": each.mend or None,
        }
        for each in findings
    ]
    print_rows(rows, COLUMNS, output)
    worst = worst_of(findings)
    count = sum(each.severity is worst for each in findings)
    if worst is Severity.FAULT:
        raise DoctorFaultError(f"{count} fault{'s' if count > 1 else ''}: see how to mend each")
    if worst is Severity.WARNING:
        raise DoctorWarnsError(f"{count} warning{'s' if count > 1 else ''}: see how to mend each")


def _check_servers(controller: str, segment_store: str) -> Iterator[Finding]:
    from pravega_admin.inspection.server_checks import ask_controller, ask_segment_store
    from pravega_admin.inspection.server_findings import ANSWER_SECONDS, check_server

    addresses, uses_tls = parse_controller_address(controller)
    tls = find_tls(uses_tls)
    for each in addresses:
        host, port = parse_host_port(each)
        ask = partial(ask_controller, seconds_max=ANSWER_SECONDS, tls=tls)
        yield from check_server("controller", host, port, ask, tls)
    place, wants_tls = parse_server_address(segment_store)
    # Both speak TLS, or none of them.
    tls = find_tls(uses_tls if wants_tls is None else wants_tls)
    host, port = parse_host_port(place)
    ask_store = partial(ask_segment_store, seconds_max=ANSWER_SECONDS, tls=tls)
    yield from check_server("segment store", host, port, ask_store, tls)
