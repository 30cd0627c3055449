"""``segstore scrub``.

Owns: the arguments of this verb, its progress and its report.

Invariants:
1. When a store is damaged, the report goes to stdout and the exit code is 8. Held by
   ``test_damage_is_named_and_has_an_exit_code``.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from pravega_admin.commands.servers import (
    DataDirOption,
    S3EndpointOption,
    S3RegionOption,
    SettingsOption,
)
from pravega_admin.errors import ConfigurationError, DamageFoundError
from pravega_admin.options import OutputOption
from pravega_admin.output.log_options import LogFormat, LogLevel
from pravega_admin.output.output import (
    OutputFormat,
    print_document,
    print_fields,
    print_message,
    print_rows,
    progress,
)
from pravega_admin.serving.settings_file import read_settings
from pravega_admin.serving.store_settings import DATA_DIR, join_tables
from segstore_client.errors import UnavailableError

DAMAGE_COLUMNS = ("kind", "segment", "segment_offset", "chunk", "chunk_offset", "reason")


def scrub(
    data_dir: DataDirOption = DATA_DIR,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="SIZE", help="Read at most this in a second, as 50MB."),
    ] = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    config: SettingsOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Read all history of a store and check it, while the store runs or not.

    Ends with exit code 8 when something is damaged.
    """
    from segstore.process.tier_two_vendors import SECTIONS
    from segstore_client.controller.stream_settings import format_size, parse_size_bytes

    file = read_settings(config).get("segment_store", {})
    bytes_per_second = None if rate is None else parse_size_bytes(rate)
    sections = {name: file[name] for name in SECTIONS if name in file}
    settings = join_tables({"s3": {"endpoint_url": s3_endpoint, "region": s3_region}}, sections)
    report = _scrub(data_dir, bytes_per_second, settings)
    damages = report.pop("damages")
    if output is not OutputFormat.TABLE:
        print_document({**report, "damages": damages}, output)
    else:
        print_fields(report, output)
        if damages:
            print()
            print_rows(damages, DAMAGE_COLUMNS, output)
    if damages:
        raise DamageFoundError(
            f"{len(damages)} places of tier 2 are damaged: restore the chunks from a copy"
        )
    if report["unchecked_bytes"]:
        print_message(
            f"{format_size(report['unchecked_bytes'])} have no checksums yet: a running store"
            " makes some for what an older version or a crash has left"
        )


def _scrub(
    data_dir: Path, bytes_per_second: int | None, settings: dict[str, Any]
) -> dict[str, Any]:
    import msgspec
    import trio

    from pravega_admin.output.logs import configure_logs
    from segstore.chunks.scrub import Pace
    from segstore.errors import (
        DataDirectoryError,
        StorageConfigurationError,
        StorageError,
    )
    from segstore.ownership.data_directory import DataDirectory
    from segstore.process.tier_two_vendors import VendorSettings
    from segstore.repair.scrub_store import StoreScrub, open_to_look, spending, start_of

    async def run() -> dict[str, Any]:
        directory = DataDirectory.read(data_dir)
        vendors = msgspec.convert(settings, VendorSettings)
        pace = None if bytes_per_second is None else Pace(bytes_per_second).spend
        async with open_to_look(directory, vendors) as chunks:
            store = StoreScrub(
                chunks,
                container_count=directory.container_count,
                start=start_of(directory),
            )
            total = await store.prepare()
            with progress("checking", total=total, in_bytes=True) as advance:
                return asdict(await store.run(spending(pace, advance)))

    configure_logs("scrub", level=LogLevel.ERROR, format=LogFormat.AUTO)
    try:
        return trio.run(run)
    except (DataDirectoryError, StorageConfigurationError, msgspec.ValidationError) as error:
        raise ConfigurationError(str(error)) from error
    except StorageError as error:
        raise UnavailableError(str(error)) from error
