"""``segstore standalone``, ``segstore server`` and ``segstore controller``.

Owns: the arguments of these verbs. A parameter without an option here has that of a setting, see
``setting_options``. A ``standalone`` with plainly right arguments is started without this module,
see ``quick_options``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from pravega_admin.options import LedgersOption
from pravega_admin.output.log_options import LogFormat, LogLevel
from pravega_admin.output.output import print_message
from pravega_admin.serving.original_defaults import translation_of
from pravega_admin.serving.quick_options import CONTROLLERS_MAX
from pravega_admin.serving.settings_file import read_settings
from pravega_admin.serving.store_settings import (
    DATA_DIR,
    join_tables,
    member_settings,
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
from pravega_admin.supervisor.service_manager import notify_ready
from segstore.process.tier_two_vendors import known_vendors
from segstore_client.addresses import PORT_MAX, parse_host_port, parse_host_ports
from segstore_client.errors import UsageError

DataDirOption: TypeAlias = Annotated[
    Path, typer.Option("--data-dir", envvar="SEGSTORE_DATA_DIR", help="Where all data is kept.")
]
InsecureOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-insecure",
        envvar="SEGSTORE_ALLOW_INSECURE",
        help="Let other machines in without TLS, or without asking who they are.",
    ),
]
SecureOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--secure",
        help="Speak TLS, and ask for a user. Certificates, keys and the user 'admin' are made in"
        " DATA-DIR/security.",
    ),
]
LogLevelOption: TypeAlias = Annotated[
    LogLevel,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="The least important lines that are logged: debug, info, warning or error.",
    ),
]
LogFormatOption: TypeAlias = Annotated[
    LogFormat, typer.Option("--log-format", help="How log lines look.")
]
SettingsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="SEGSTORE_CONFIG",
        help="A TOML file with more settings.",
    ),
]
Tier2Option: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tier2",
        metavar="LOCATION",
        envvar="SEGSTORE_TIER2",
        help=f"Keep history in {known_vendors()}. By default it is in the data directory.",
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


def standalone(
    ctx: typer.Context,
    *,
    data_dir: DataDirOption = DATA_DIR,
    host: str,
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
    http_port: int,
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
    published_address: str | None,
    container_count: int,
    tier2: Tier2Option = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    secure: SecureOption = False,
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
            "http_port": http_port,
            "segment_store_port": segment_store_port,
            "stores": read_stores(stores),
            "published_address": published_address,
            "container_count": container_count,
            "tier2": tier2,
            "s3_endpoint": s3_endpoint,
            "s3_region": s3_region,
            "secure": secure,
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
    given: dict[str, Any],
    data_dir: DataDirOption = DATA_DIR,
    tier2: Tier2Option = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
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
    from pravega_admin.serving.standalone import check_exposure, check_port
    from segstore.ownership.data_directory import DataDirectory

    if zookeeper is not None:
        parse_host_ports(zookeeper)
    file = _read_settings(ctx, config, "segment_store", given)
    member = member_settings(
        file.pop("cluster", {}),
        zookeeper=zookeeper,
        name=cluster,
        published=publish and parse_host_port(publish),
        replicas=replicas,
        ledgers_root=bookkeeper_ledgers,
    )
    options = {
        "data_dir": str(data_dir),
        "cluster": member,
        **tier_2_settings(
            tier2, endpoint=s3_endpoint, region=s3_region, is_shared=member is not None
        ),
    }
    if member is None and not DataDirectory.exists(data_dir):
        # A first start that is refused should leave nothing behind.
        check_exposure(
            given["host"], allow_insecure=allow_insecure, kind=SEGMENT_STORE, settings=file
        )
        check_port(given["host"], given["port"], "--port")
    _serve(
        SEGMENT_STORE,
        join_tables(options, file),
        without_effect=_names_without_effect(ctx),
        allow_insecure=allow_insecure,
        log_level=log_level,
        log_format=log_format,
    )


def controller(
    ctx: typer.Context,
    given: dict[str, Any],
    segment_store: Annotated[
        list[str] | None,
        typer.Option("--segment-store", metavar="HOST:PORT", help="One for each segment store."),
    ] = None,
    zookeeper: ZookeeperOption = None,
    cluster: ClusterOption = None,
    allow_insecure: InsecureOption = False,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
    config: SettingsOption = None,
) -> None:
    """Run one controller in this process."""
    file = _read_settings(ctx, config, "controller", given)
    _serve(
        CONTROLLER,
        {**_where_stores_are(segment_store, zookeeper, cluster), **file},
        without_effect=_names_without_effect(ctx),
        allow_insecure=allow_insecure,
        log_level=log_level,
        log_format=log_format,
    )


def _read_settings(
    ctx: typer.Context, path: Path | None, table: str, given: dict[str, Any]
) -> dict[str, Any]:
    """Return a table of the settings file, with the settings of options and of the original's
    names."""
    from pravega_admin.serving.original_names import check_needed, merge_settings

    tables = merge_settings(read_settings(path), {table: given})
    if (translation := translation_of(ctx)) is not None:
        tables = merge_settings(tables, translation.settings)
        check_needed(tables, translation.needed)
    return tables[table]  # type: ignore[no-any-return]


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
    from pravega_admin.output.logs import configure_logs
    from pravega_admin.serving.serve import SERVERS, run_server
    from pravega_admin.serving.standalone import check_exposure

    check_exposure(settings["host"], allow_insecure=allow_insecure, kind=kind, settings=settings)
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
