"""``segstore recover``: repair a store that lost a journal, or a part of tier 2.

Owns: messages to the user and questions; ``segstore.repair.recover`` does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pravega_admin.commands.servers import (
    DataDirOption,
    S3EndpointOption,
    S3RegionOption,
    SettingsOption,
    Tier2Option,
)
from pravega_admin.errors import AdminError, ConfigurationError
from pravega_admin.options import OutputOption
from pravega_admin.output.output import OutputFormat, print_document, print_message, print_rows
from pravega_admin.serving.settings_file import read_settings
from pravega_admin.serving.store_settings import DATA_DIR, join_tables, tier_2_settings
from pravega_wire import names

if TYPE_CHECKING:
    from pravega_admin.inspection.recovered_streams import RecordedStreams
    from segstore.process.config import SegmentStoreConfig
    from segstore.repair.recover import RecoveryPlan, Tables
    from segstore.repair.salvage import Finding

COLUMNS = ("container", "segment", "what", "offset", "bytes")
CONTROLLER_TABLES = "_system/_tables/"


def recover(
    *,
    data_dir: DataDirOption = DATA_DIR,
    container_count: int,
    tier2: Tier2Option = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    config: SettingsOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what is wrong and what would be done.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Repair a stopped store after it lost a journal or a part of tier 2, and keep what is left.

    It is for a store on its own: logs of a cluster are on bookies.

    First it reports the problems, and the data that each segment would lose. It moves the
    files that it replaces to a directory below the data directory.
    """
    from segstore.process.config import SegmentStoreConfig

    file = read_settings(config).get("segment_store", {})
    if "cluster" in file:
        raise ConfigurationError(
            f"{config} is of a member of a cluster, whose logs are on bookies: recover repairs only"
            " the journals of a single store; it read and changed nothing"
        )
    if not data_dir.exists():
        raise ConfigurationError(
            f"data directory {data_dir} does not exist; a member of a cluster has none, and nothing"
            " that recover could repair"
        )
    options: dict[str, Any] = {
        "data_dir": str(data_dir),
        "container_count": container_count,
        **join_tables(tier_2_settings(tier2, endpoint=s3_endpoint, region=s3_region), file),
    }
    import trio

    from pravega_admin.output.log_options import LogFormat, LogLevel
    from pravega_admin.output.logs import configure_logs
    from pravega_admin.serving.serve import read_config

    settings = read_config("segment store", SegmentStoreConfig, options)
    configure_logs("recover", level=LogLevel.WARNING, format=LogFormat.AUTO)
    trio.run(_recover, settings, dry_run, yes, output)


async def _recover(
    settings: SegmentStoreConfig, dry_run: bool, yes: bool, output: OutputFormat
) -> None:
    from pravega_admin.inspection.recovered_streams import RecordedStreams, read_streams
    from segstore.errors import (
        DataDirectoryError,
        SegmentStoreError,
        StorageConfigurationError,
        leaf_errors,
    )
    from segstore.repair.recover import open_recovery

    streams = RecordedStreams()

    def find_required(tables: Tables) -> RecordedStreams:
        nonlocal streams
        streams = read_streams(tables)
        return streams

    try:
        async with open_recovery(settings) as recovery:
            plan = await recovery.plan(find_required=find_required)
            _print_plan(plan, output)
            if not plan.problems:
                print_message("nothing has to be recovered: the journal and tier 2 agree")
                return
            if dry_run:
                print_message("nothing was changed; recover does this without --dry-run")
                return
            if not yes and not _confirm():
                raise AdminError("nothing was changed")
            backup = await recovery.run(plan)
        print_message(f"recovered; {backup} has the former content of everything that was changed")
        async with open_recovery(settings) as recovery:
            _print_agreement(await recovery.plan(find_required=find_required), streams)
    except Exception as error:
        for leaf in leaf_errors(error):
            if isinstance(leaf, DataDirectoryError | StorageConfigurationError):
                raise ConfigurationError(str(leaf)) from error
            if isinstance(leaf, SegmentStoreError | OSError):
                raise AdminError(f"the store cannot be recovered: {leaf}") from error
        raise


def _confirm() -> bool:
    try:
        return typer.confirm("Continue with the remaining data?", err=True)
    except typer.Abort:
        return False


def _print_plan(plan: RecoveryPlan, output: OutputFormat) -> None:
    """Print the problems, and what would happen to segments."""
    rows = [
        {
            "container": finding.container_id,
            "segment": finding.segment,
            "what": finding.what,
            "offset": finding.offset,
            "bytes": finding.length,
        }
        for finding in plan.findings
    ]
    lost = [row for each in plan.findings if (row := _lost_range(each))]
    if output is not OutputFormat.TABLE:
        journals = [
            {
                "path": str(journal.path),
                "is_readable": journal.left is not None,
                "dropped_bytes_max": journal.dropped_bytes_max,
                "missing_files": list(journal.missing),
                "let_go_or_lost_files": list(journal.let_go_or_lost),
            }
            for journal in plan.journals
        ]
        document = {"problems": plan.problems, "journals": journals, "segments": rows, "lost": lost}
        print_document(document, output)
        return
    for problem in plan.problems:
        print_message(problem)
    if rows:
        print_rows(rows, COLUMNS, output)
    for row in lost:
        print_message(
            f"stream {row['scope']}/{row['stream']} has lost the bytes from {row['from']} to"
            f" {row['to']} of segment {row['segment']}"
        )
    for journal in plan.journals:
        print_message(f"a new journal replaces {journal.path}, which is kept")
        if journal.left is None:
            print_message(
                "acknowledged data that had not reached tier 2 are lost; their size is unknown"
            )
        elif journal.dropped_bytes_max is not None:
            print_message(
                "the data before the damage are used; of the data behind it, at most"
                f" {journal.dropped_bytes_max} bytes of journal, only those that had reached tier"
                " 2 are left"
            )
        if journal.missing:
            print_message(
                "of the data in missing files, whose size is unknown, only those that had reached"
                f" tier 2 are left: {', '.join(journal.missing)}"
            )
        if journal.let_go_or_lost:
            print_message(
                "the first files cannot be read, and the journal needed them up to the damage: it"
                " may have deleted them later; otherwise only the data in them that had reached"
                f" tier 2 are left: {', '.join(journal.let_go_or_lost)}"
            )
    if any(str(row["segment"]).startswith(CONTROLLER_TABLES) for row in rows):
        print_message(
            "this list has segments in which the controller keeps scopes and streams: the last"
            " changes of streams may be lost, and streams whose creation was interrupted must be"
            " created or deleted again"
        )


def _lost_range(finding: Finding) -> dict[str, str | int] | None:
    """Return what a stream has lost of one of its segments, in the terms of stream cuts; None for
    any other finding."""
    if finding.what != "lost":
        return None
    try:
        name = names.parse_segment_name(finding.segment)
    except names.InvalidNameError:
        return None
    if name.transaction_id is not None or name.writer_id is not None:
        return None
    return {
        "scope": name.scope,
        "stream": name.stream,
        "segment": name.segment_id,
        "from": finding.offset,
        "to": finding.offset + finding.length,
    }


def _print_agreement(plan: RecoveryPlan, streams: RecordedStreams) -> None:
    """Say whether the controller's records and the store agree after a recovery. Raises
    ``AdminError`` when they do not."""
    for sentence in streams.unreadable:
        print_message(sentence)
    if plan.problems:
        for problem in plan.problems:
            print_message(problem)
        raise AdminError("the store was recovered, and something is still wrong: see above")
    print_message(
        f"the controller's records and the store agree: {streams.stream_count} streams with"
        f" {len(streams.segments)} segments"
    )
