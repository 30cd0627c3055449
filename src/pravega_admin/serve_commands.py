"""``segstore standalone``, ``segstore server`` and ``segstore controller``.

Owns: the arguments of these verbs, and the settings file.

A settings file is TOML with the tables ``segment_store`` and ``controller``, whose keys are the
fields of the servers' configurations; those that have an option are refused there.
"""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from pravega_admin.child_protocol import CONTROLLER, SEGMENT_STORE
from pravega_admin.errors import ConfigurationError, UsageError
from pravega_admin.log_options import LogFormat, LogLevel
from pravega_admin.output import note

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
    typer.Option("--allow-insecure", help="Listen to other machines without authentication."),
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
        metavar="s3://BUCKET/PREFIX",
        envvar="SEGSTORE_TIER2",
        help="Keep history in S3; by default it is in the data directory.",
    ),
]
S3EndpointOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--s3-endpoint", metavar="URL", help="An S3 server that is not Amazon's."),
]
S3RegionOption: TypeAlias = Annotated[
    str | None, typer.Option("--s3-region", metavar="NAME", help="The region of the bucket.")
]
PORT_MAX = 65535
SETTINGS_WITH_OPTIONS = {
    "segment_store": {"host", "port", "data_dir", "container_count", "tier2", "s3"},
    "controller": {
        "host",
        "port",
        "segment_stores",
        "container_count",
        "published_address",
    },
}


def register(app: typer.Typer) -> None:
    """Add the verbs of this module to the application."""
    app.command()(standalone)
    app.command()(server)
    app.command()(controller)


def standalone(
    data_dir: DataDirOption = Path("data"),
    host: HostOption = "127.0.0.1",
    controller_port: Annotated[
        int, typer.Option("--controller-port", min=1, max=PORT_MAX, help="Where clients connect.")
    ] = 9090,
    segment_store_port: Annotated[
        int, typer.Option("--segment-store-port", min=1, max=PORT_MAX, help="Where data flows.")
    ] = 12345,
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
    """Run a whole store on this machine: a controller and a segment store."""
    began = process_began()
    from pravega_admin.standalone import StandaloneSettings, run_standalone

    file = read_settings(config)
    settings = StandaloneSettings(
        data_dir=data_dir,
        host=host,
        controller_port=controller_port,
        segment_store_port=segment_store_port,
        published_address=published_address,
        container_count=container_count,
        allow_insecure=allow_insecure,
        log_level=log_level,
        log_format=log_format,
        log_file=log_file,
        segment_store={
            **_tier_2(tier2, endpoint=s3_endpoint, region=s3_region),
            **file.get("segment_store", {}),
        },
        controller=file.get("controller", {}),
    )
    run_standalone(settings, began=began)


def server(
    data_dir: DataDirOption = Path("data"),
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=PORT_MAX, help="Its port.")] = 12345,
    container_count: ContainersOption = 4,
    tier2: Tier2Option = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    allow_insecure: InsecureOption = False,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
    config: SettingsOption = None,
) -> None:
    """Run one segment store in this process."""
    options = {
        "host": host,
        "port": port,
        "data_dir": str(data_dir),
        "container_count": container_count,
        **_tier_2(tier2, endpoint=s3_endpoint, region=s3_region),
    }
    _serve(
        SEGMENT_STORE,
        {**options, **read_settings(config).get("segment_store", {})},
        allow_insecure=allow_insecure,
        log_level=log_level,
        log_format=log_format,
    )


def controller(
    segment_store: Annotated[
        list[str] | None,
        typer.Option("--segment-store", metavar="HOST:PORT", help="One for each segment store."),
    ] = None,
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
    stores = [_parse_host_port(text) for text in segment_store or ["127.0.0.1:12345"]]
    options = {
        "host": host,
        "port": port,
        "segment_stores": stores,
        "container_count": container_count,
        "published_address": published_address,
    }
    _serve(
        CONTROLLER,
        {**options, **read_settings(config).get("controller", {})},
        allow_insecure=allow_insecure,
        log_level=log_level,
        log_format=log_format,
    )


def process_began() -> float:
    """When this process was started, by the monotonic clock."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
    return time.monotonic() - age


def read_settings(path: Path | None) -> dict[str, dict[str, Any]]:
    """The tables of a settings file; ``ConfigurationError`` when there is anything else in it."""
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    for name, table in tables.items():
        if name not in SETTINGS_WITH_OPTIONS or not isinstance(table, dict):
            known = " and ".join(SETTINGS_WITH_OPTIONS)
            raise ConfigurationError(f"{path} has {name!r}; only tables {known} are known")
        if taken := SETTINGS_WITH_OPTIONS[name] & table.keys():
            raise ConfigurationError(f"{path} sets {min(taken)}, which is an option of the command")
    return tables


def _serve(
    kind: str,
    settings: dict[str, Any],
    *,
    allow_insecure: bool,
    log_level: LogLevel,
    log_format: LogFormat,
) -> None:
    from pravega_admin.logs import configure_logs
    from pravega_admin.serve import SERVERS, run_server
    from pravega_admin.standalone import check_exposure

    check_exposure(settings["host"], allow_insecure=allow_insecure)
    configure_logs(kind, level=log_level, format=log_format)
    where = f"{settings['host']}:{settings['port']}"
    run_server(
        SERVERS[kind],
        settings,
        on_ready=lambda: note(f"{SERVERS[kind].title} is ready on {where}"),
    )


def _tier_2(location: str | None, *, endpoint: str | None, region: str | None) -> dict[str, Any]:
    """The settings of a segment store that say where its tier 2 is."""
    if location is None:
        if endpoint is not None or region is not None:
            raise UsageError("--s3-endpoint and --s3-region need --tier2 s3://BUCKET/PREFIX")
        return {}
    from segstore.tiers.s3.location import S3Location, S3LocationError

    try:
        S3Location.parse(location)
    except S3LocationError as error:
        raise UsageError(f"--tier2 {error}") from error
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"--s3-endpoint {endpoint!r} is not an http:// or https:// URL")
    return {"tier2": location, "s3": {"endpoint_url": endpoint, "region": region}}


def _parse_host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise UsageError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
