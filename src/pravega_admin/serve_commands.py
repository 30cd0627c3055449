"""``segstore standalone``, ``segstore server`` and ``segstore controller``.

Owns: the arguments of these verbs. A ``standalone`` with plainly right arguments is started without
this module, see ``quick_options``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from pravega_admin.addresses import parse_host_port, parse_host_ports
from pravega_admin.log_options import LogFormat, LogLevel
from pravega_admin.options import LedgersOption
from pravega_admin.original_defaults import translation_of
from pravega_admin.output import print_message
from pravega_admin.quick_options import CONTROLLERS_MAX, PORT_MAX
from pravega_admin.service_manager import notify_ready
from pravega_admin.store_settings import (
    DATA_DIR,
    member_settings,
    read_settings,
    read_stores,
    start_standalone,
    tier_2_settings,
)
from pravega_admin.supervisor.child_protocol import (
    CONTROLLER,
    SEGMENT_STORE,
    Verdict,
    announce,
)
from pravega_blocking.errors import UsageError

HostOption: TypeAlias = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")
]
DataDirOption: TypeAlias = Annotated[
    Path, typer.Option("--data-dir", envvar="SEGSTORE_DATA_DIR", help="Where all data is kept.")
]
ContainersOption: TypeAlias = Annotated[
    int,
    typer.Option(
        "--container-count", min=1, help="Containers of the store; it never changes afterwards."
    ),
]
InsecureOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-insecure",
        envvar="SEGSTORE_ALLOW_INSECURE",
        help="Listen to other machines without authentication.",
    ),
]
PublishedOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--published-address",
        metavar="ADDRESS",
        help="The host that clients are told; by default the one they have dialled.",
    ),
]
LogLevelOption: TypeAlias = Annotated[
    LogLevel, typer.Option("--log-level", help="The least important lines that are logged.")
]
LogFormatOption: TypeAlias = Annotated[
    LogFormat, typer.Option("--log-format", help="How log lines look.")
]
SettingsOption: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with more settings.")
]
Tier2Option: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tier2",
        metavar="LOCATION",
        envvar="SEGSTORE_TIER2",
        help="Keep history in S3 (s3://BUCKET/PREFIX) or HDFS (webhdfs://HOST:PORT/PATH); by"
        " default it is in the data directory.",
    ),
]
S3EndpointOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--s3-endpoint", metavar="URL", help="An S3 server that is not Amazon's."),
]
ZookeeperOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT,...",
        help="The ZooKeeper servers of a cluster, of which this becomes a part.",
    ),
]
ClusterOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="NAME", help="The cluster's name, 'pravega-cluster' by default."
    ),
]
S3RegionOption: TypeAlias = Annotated[
    str | None, typer.Option("--s3-region", metavar="NAME", help="The region of the bucket.")
]


PublishOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--publish",
        metavar="HOST:PORT",
        help="Where clients reach a member of a cluster; by default where it listens.",
    ),
]
ReplicasOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--replicas",
        metavar="E/W/A",
        help="In a cluster: bookies of a ledger, of an entry, and how many must have it.",
    ),
]
ReportOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--controller", metavar="HOST:PORT", help="The controller to report segments' load to."
    ),
]


def standalone(
    ctx: typer.Context,
    data_dir: DataDirOption = DATA_DIR,
    host: HostOption = "127.0.0.1",
    controller_port: Annotated[
        int, typer.Option("--controller-port", min=1, max=PORT_MAX, help="Where clients connect.")
    ] = 9090,
    controllers: Annotated[
        int,
        typer.Option(
            "--controllers",
            min=1,
            max=CONTROLLERS_MAX,
            help="How many controllers: each has the port after the one before.",
        ),
    ] = 1,
    segment_store_port: Annotated[
        int, typer.Option("--segment-store-port", min=1, max=PORT_MAX, help="Where data flows.")
    ] = 12345,
    stores: Annotated[
        str,
        typer.Option(
            "--stores",
            metavar="N|auto",
            help="How many segment stores: each has the port after the one before, and its share of"
            " the containers. auto: one for two cores.",
        ),
    ] = "1",
    published_address: PublishedOption = None,
    container_count: ContainersOption = 4,
    tier2: Tier2Option = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    allow_insecure: InsecureOption = False,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
    log_file: Annotated[
        Path | None, typer.Option("--log-file", help="Write logs there, not to stderr.")
    ] = None,
    config: SettingsOption = None,
) -> None:
    """Run a whole store on this machine: a controller and a segment store, or several of each."""
    if names := _names_without_effect(ctx):
        print_message(f"settings of the original have no effect: {', '.join(names)}")
    start_standalone(
        {
            "data_dir": data_dir,
            "host": host,
            "controller_port": controller_port,
            "controllers": controllers,
            "segment_store_port": segment_store_port,
            "stores": read_stores(stores),
            "published_address": published_address,
            "container_count": container_count,
            "tier2": tier2,
            "s3_endpoint": s3_endpoint,
            "s3_region": s3_region,
            "allow_insecure": allow_insecure,
            "log_level": log_level,
            "log_format": log_format,
            "log_file": log_file,
            "debug": ctx.find_root().params.get("debug") or None,
            "config": config,
        }
    )


def server(
    ctx: typer.Context,
    data_dir: DataDirOption = DATA_DIR,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=PORT_MAX, help="Its port.")] = 12345,
    container_count: ContainersOption = 4,
    tier2: Tier2Option = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    controller: ReportOption = None,
    zookeeper: ZookeeperOption = None,
    cluster: ClusterOption = None,
    publish: PublishOption = None,
    replicas: ReplicasOption = None,
    bookkeeper_ledgers: LedgersOption = None,
    allow_insecure: InsecureOption = False,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
    config: SettingsOption = None,
) -> None:
    """Run one segment store in this process.

    With --zookeeper it is a member of a cluster: its log is on bookies, --tier2 names a directory
    or a location that all members share, and nothing is kept in a data directory.
    """
    if zookeeper is not None:
        parse_host_ports(zookeeper)
    file = _read_settings(ctx, config).get("segment_store", {})
    member = member_settings(
        file.pop("cluster", {}),
        zookeeper=zookeeper,
        name=cluster,
        published=publish and parse_host_port(publish),
        replicas=replicas,
        ledgers_root=bookkeeper_ledgers,
    )
    options = {
        "host": host,
        "port": port,
        "data_dir": str(data_dir),
        "container_count": container_count,
        "controller": None if controller is None else parse_host_port(controller),
        "cluster": member,
        **tier_2_settings(
            tier2, endpoint=s3_endpoint, region=s3_region, is_shared=member is not None
        ),
    }
    _serve(
        SEGMENT_STORE,
        {**options, **file},
        without_effect=_names_without_effect(ctx),
        allow_insecure=allow_insecure,
        log_level=log_level,
        log_format=log_format,
    )


def controller(
    ctx: typer.Context,
    segment_store: Annotated[
        list[str] | None,
        typer.Option("--segment-store", metavar="HOST:PORT", help="One for each segment store."),
    ] = None,
    zookeeper: ZookeeperOption = None,
    cluster: ClusterOption = None,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=PORT_MAX, help="Its port.")] = 9090,
    published_address: PublishedOption = None,
    container_count: ContainersOption = 4,
    allow_insecure: InsecureOption = False,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
    config: SettingsOption = None,
) -> None:
    """Run one controller in this process."""
    options = {
        "host": host,
        "port": port,
        "container_count": container_count,
        "published_address": published_address,
        **_where_stores_are(segment_store, zookeeper, cluster),
    }
    _serve(
        CONTROLLER,
        {**options, **_read_settings(ctx, config).get("controller", {})},
        without_effect=_names_without_effect(ctx),
        allow_insecure=allow_insecure,
        log_level=log_level,
        log_format=log_format,
    )


def _read_settings(ctx: typer.Context, path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the tables of the settings file, with the settings of the original's names."""
    tables = read_settings(path)
    if (translation := translation_of(ctx)) is None:
        return tables
    from pravega_admin.original_names import merge_settings

    return merge_settings(tables, translation.settings)


def _names_without_effect(ctx: typer.Context) -> Sequence[str]:
    """Return the given names of the original that have no effect here."""
    translation = translation_of(ctx)
    return () if translation is None else translation.without_effect


def _where_stores_are(
    segment_stores: list[str] | None, zookeeper: str | None, cluster: str | None
) -> dict[str, Any]:
    """Return the settings by which a controller finds the segment stores."""
    if zookeeper is None:
        if cluster is not None:
            raise UsageError("--cluster needs --zookeeper HOST:PORT")
        stores = segment_stores or ["127.0.0.1:12345"]
        return {"segment_stores": [parse_host_port(text) for text in stores]}
    if segment_stores:
        raise UsageError("--segment-store is for a controller without --zookeeper")
    parse_host_ports(zookeeper)
    return {"zookeeper": zookeeper, **({} if cluster is None else {"cluster": cluster})}


def _serve(
    kind: str,
    settings: dict[str, Any],
    *,
    without_effect: Sequence[str],
    allow_insecure: bool,
    log_level: LogLevel,
    log_format: LogFormat,
) -> None:
    from pravega_admin.logs import configure_logs
    from pravega_admin.serve import SERVERS, run_server
    from pravega_admin.standalone import check_exposure

    check_exposure(settings["host"], allow_insecure=allow_insecure)
    configure_logs(kind, level=log_level, format=log_format)
    if without_effect:
        import structlog

        log = structlog.get_logger(__name__)
        log.warning("settings of the original have no effect", names=list(without_effect))
    where = f"{settings['host']}:{settings['port']}"

    def on_ready() -> None:
        announce(Verdict(is_ready=True))
        notify_ready()
        print_message(f"{SERVERS[kind].title} is ready on {where}")

    run_server(SERVERS[kind], settings, on_ready=on_ready)
