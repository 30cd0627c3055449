"""The options of the data source: their names, defaults and checks.

Owns: ``Options``, with the official Spark 3 connector's names and defaults where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pravega_blocking.addresses import DEFAULT_CONTROLLER
from pravega_spark.errors import OptionError
from pravega_spark.times import parse_time

if TYPE_CHECKING:
    # Tasks that read start faster without gRPC, and seldom ask a controller.
    from pravega_blocking.controller_client import ControllerClient
    from pravega_blocking.stream_settings import StreamSettings

EARLIEST = "earliest"
LATEST = "latest"
UNBOUNDED = "unbounded"
PERMISSIVE = "permissive"
FAILFAST = "failfast"
MODES = (PERMISSIVE, FAILFAST)

AUTO = "auto"
DIRECT = "direct"
WIRE = "wire"
PARTITION_BYTES_MAX = 256 * 1024 * 1024

PATIENCE_SECONDS = 60.0
"""Time, in seconds, without a controller after which a job fails."""
LEASE_MS = 600_000
"""Maximum lease, in milliseconds, that the original's controller grants by default: a finished task
must keep its transaction until the slowest one of its stage has finished."""
COMMIT_TABLE = "spark-commits"

STREAM_NUMBERS = (
    "default_num_segments",
    "default_scale_factor",
    "default_segment_target_rate_bytes_per_sec",
    "default_segment_target_rate_events_per_sec",
    "default_retention_duration_milliseconds",
    "default_retention_size_bytes",
)
"""Options for a stream that the data source makes itself."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options as given, checked. Absent numbers are 0."""

    controller: str = DEFAULT_CONTROLLER
    scope: str = ""
    stream: str = ""
    start: str | None = None
    end: str | None = None
    start_time_ms: int | None = None
    end_time_ms: int | None = None
    schema: str = ""
    mode: str = PERMISSIVE
    metadata: str = ""
    allow_create_scope: bool = True
    allow_create_stream: bool = True
    fail_on_data_loss: bool = True
    min_partitions: int = 0
    max_partition_bytes: int = PARTITION_BYTES_MAX
    read_path: str = AUTO
    max_bytes_per_trigger: int = 0
    max_rows_per_trigger: int = 0
    stream_numbers: Mapping[str, int] = field(default_factory=dict)
    exactly_once: bool = True
    read_after_write_consistency: bool = True
    transaction_timeout_ms: int = LEASE_MS
    transaction_status_poll_interval_ms: int = 50
    query_id: str = ""
    commit_table: str = COMMIT_TABLE

    @property
    def name(self) -> str:
        """Return ``scope/stream``."""
        return f"{self.scope}/{self.stream}"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Check the options; ``OptionError`` names a wrong one.

        Unknown options belong to Spark and are ignored.
        """
        values = {name.lower(): value for name, value in given.items()}
        for name in ("scope", *([] if "metadata" in values else ["stream"])):
            if not values.get(name):
                raise OptionError(f"the option {name} is missing: .option({name!r}, ...)")
        metadata = values.get("metadata", "")
        if metadata.lower() not in ("", "streams", "streaminfo"):
            raise OptionError(f"metadata is Streams or StreamInfo, not {metadata!r}")
        if metadata.lower() == "streaminfo" and not values.get("stream"):
            raise OptionError("metadata StreamInfo needs the option stream")
        read_path = values.get("read_path", AUTO).lower()
        if read_path not in (AUTO, DIRECT, WIRE):
            raise OptionError(f"read_path is auto, direct or wire, not {values['read_path']!r}")
        for end in ("start", "end"):
            if f"{end}_stream_cut" in values and f"{end}_time" in values:
                raise OptionError(f"{end}_stream_cut and {end}_time say the same: give one of them")
        mode = values.get("mode", PERMISSIVE).lower()
        if mode not in MODES:
            raise OptionError(f"mode is {' or '.join(MODES)}, not {values['mode']!r}")
        bytes_option = "max_bytes_per_trigger"
        if bytes_option not in values:
            bytes_option = "approx_bytes_per_trigger"
        return cls(
            controller=values.get("controller", DEFAULT_CONTROLLER),
            scope=values["scope"],
            stream=values.get("stream", ""),
            start=values.get("start_stream_cut"),
            end=values.get("end_stream_cut"),
            start_time_ms=_time(values, "start_time"),
            end_time_ms=_time(values, "end_time"),
            schema=values.get("schema", ""),
            mode=mode,
            metadata=metadata.lower(),
            allow_create_scope=_flag(values, "allow_create_scope", True),
            allow_create_stream=_flag(values, "allow_create_stream", True),
            fail_on_data_loss=_flag(values, "fail_on_data_loss", True),
            min_partitions=_number(values, "min_partitions"),
            max_partition_bytes=_number(values, "max_partition_bytes", PARTITION_BYTES_MAX),
            read_path=read_path,
            max_bytes_per_trigger=_number(values, bytes_option),
            max_rows_per_trigger=_number(values, "max_rows_per_trigger"),
            stream_numbers={
                name: _number(values, name) for name in STREAM_NUMBERS if name in values
            },
            exactly_once=_flag(values, "exactly_once", True),
            read_after_write_consistency=_flag(values, "read_after_write_consistency", True),
            transaction_timeout_ms=_number(values, "transaction_timeout_ms", LEASE_MS),
            transaction_status_poll_interval_ms=_number(
                values, "transaction_status_poll_interval_ms", 50
            ),
            # Spark keeps a query's checkpoint for ever at the same place, so it can name the query.
            query_id=values.get("query_id") or values.get("checkpointlocation", ""),
            commit_table=values.get("commit_table", COMMIT_TABLE),
        )


def open_controller(options: Options) -> ControllerClient:
    """Return a connection to the controller that waits as long as a job should."""
    from pravega_blocking.controller_client import ControllerClient

    return ControllerClient(options.controller, patience=PATIENCE_SECONDS)


def stream_settings(numbers: Mapping[str, int]) -> StreamSettings:
    """Return the settings of a stream to make, from the options with its numbers."""
    from pravega_blocking.stream_settings import (
        Retention,
        RetentionKind,
        Scaling,
        ScalingKind,
        StreamSettings,
    )

    kind, rate = ScalingKind.FIXED, 0
    if events := numbers.get("default_segment_target_rate_events_per_sec", 0):
        kind, rate = ScalingKind.EVENT_RATE, events
    elif byte_rate := numbers.get("default_segment_target_rate_bytes_per_sec", 0):
        kind, rate = ScalingKind.KBYTE_RATE, max(1, byte_rate // 1024)
    scaling = Scaling(
        kind,
        segment_count_min=numbers.get("default_num_segments", 1),
        target_rate=rate,
        scale_factor=0 if kind is ScalingKind.FIXED else numbers.get("default_scale_factor", 2),
    )
    retention = Retention()
    if milliseconds := numbers.get("default_retention_duration_milliseconds", 0):
        retention = Retention(RetentionKind.TIME, milliseconds)
    elif size := numbers.get("default_retention_size_bytes", 0):
        retention = Retention(RetentionKind.SIZE, size)
    return StreamSettings(scaling=scaling, retention=retention)


def _time(values: Mapping[str, str], name: str) -> int | None:
    return parse_time(name, values[name]) if name in values else None


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} is true or false, not {values[name]!r}")
    return text == "true"


def _number(values: Mapping[str, str], name: str, default: int = 0) -> int:
    text = values.get(name, str(default))
    if not text.isdecimal():
        raise OptionError(f"{name} is a whole number, not {text!r}")
    return int(text)
