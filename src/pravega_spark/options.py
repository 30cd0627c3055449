"""The options of the data source: their names, defaults and checks.

Owns: ``Options``, with the official Spark 3 connector's names and defaults where it has them.

Invariants:
1. No option is a secret, and the printed form of the options shows none. Held by
   ``test_options_show_no_secret``.
2. When the options are sent to tasks, they have what the files on the driver said. Held by
   ``test_tasks_get_what_the_files_of_the_driver_say``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from pravega_spark.errors import OptionError
from segstore_client.access.settings import (
    AccessSettings,
    ClientAccess,
    build_access,
    read_environment,
    read_official_environment,
)
from segstore_client.access.tokens import DelegationTokens, StoreAccess
from segstore_client.access.words import ENVIRONMENT, AccessWords
from segstore_client.addresses import DEFAULT_CONTROLLER, parse_controller_address
from segstore_client.cuts.times import parse_time
from segstore_client.errors import UsageError

if TYPE_CHECKING:
    # Tasks that read start faster without gRPC, and seldom ask a controller.
    from segstore_client.controller.controller_client import ControllerClient
    from segstore_client.controller.stream_settings import StreamSettings

EARLIEST = "earliest"
LATEST = "latest"
UNBOUNDED = "unbounded"
PERMISSIVE = "permissive"
DROPMALFORMED = "dropmalformed"
FAILFAST = "failfast"
MODES = (PERMISSIVE, DROPMALFORMED, FAILFAST)

AUTO = "auto"
DIRECT = "direct"
WIRE = "wire"
PARTITION_BYTES_MAX = 256 * 1024 * 1024

PATIENCE_SECONDS = 60.0
"""Time, in seconds, for which a job waits for a controller that does not answer."""
FIRST_PATIENCE_SECONDS = 8.0
"""The same time until a controller has answered once: before that, the address may be wrong."""
LEASE_MS = 600_000
"""Lease of a task's transaction, in milliseconds: the maximum that the original's controller grants
by default. It is long because a task that has finished waits for the slowest task of its stage."""
COMMIT_TABLE = "spark-commits"

STREAM_NUMBERS = (
    "default_num_segments",
    "default_scale_factor",
    "default_segment_target_rate_bytes_per_sec",
    "default_segment_target_rate_events_per_sec",
    "default_retention_duration_milliseconds",
    "default_retention_size_bytes",
)
"""Options with numbers for a stream that the data source creates."""
ACCESS_OPTIONS = ("user", "password_file", "token_file", "ca")
"""Options that say who calls, and whom to trust. None of these options is a secret itself."""
WORDS = AccessWords(
    f"the options user and password_file, or {ENVIRONMENT.login}",
    f"the option password_file, or {ENVIRONMENT.password}",
    f"the option ca, or {ENVIRONMENT.ca}",
)
"""The words by which a job says who calls, and whom to trust."""
_ALIASES = {"passwordfile": "password_file", "tokenfile": "token_file"}
_SECRETS = frozenset({"password", "token"})
SPARKS_OWN = frozenset({"checkpointlocation", "outputmode", "path", "paths", "queryname"})
"""Options, in lower case, that Spark defines and passes to every data source."""


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of a job. Numbers that were not given are 0."""

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
    query_content: str = ""
    checkpoint: str = ""
    commit_table: str = COMMIT_TABLE
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    ca: str = ""
    access: ClientAccess = field(default_factory=ClientAccess)
    """The caller, and whom it trusts: read from the files on the driver, and sent to tasks."""

    @property
    def name(self) -> str:
        """Return ``scope/stream``."""
        return f"{self.scope}/{self.stream}"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Return the checked options; ``OptionError`` names an invalid or an unknown one."""
        values = {_ALIASES.get(name.lower(), name.lower()): given[name] for name in given}
        for name in given:
            if name.lower() in _SECRETS:
                raise OptionError(
                    f"there is no option {name}, since Spark shows options in its plans: name a"
                    " file on the driver by password_file or token_file"
                )
            if name.lower() not in KNOWN | SPARKS_OWN | _ALIASES.keys():
                near = difflib.get_close_matches(name.lower(), sorted(KNOWN), n=1)
                hint = f": did you mean {near[0]}?" if near else ""
                raise OptionError(f"there is no option {name}{hint}")
        return cls._of(values)

    @classmethod
    def _of(cls, values: Mapping[str, str]) -> Options:
        """Return the options, given their values by known names in lower case."""
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
            raise OptionError(
                f"mode is {', '.join(MODES[:-1])} or {MODES[-1]}, not {values['mode']!r}"
            )
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
            query_id=values.get("query_id", ""),
            query_content=values.get("query_content", ""),
            checkpoint=values.get("checkpointlocation", ""),
            commit_table=values.get("commit_table", COMMIT_TABLE),
            access=_read_access(values),
            **{name: values.get(name, "") for name in ACCESS_OPTIONS},
        )


_TIMES = {f"{end}_{kind}" for end in ("start", "end") for kind in ("stream_cut", "time")}
KNOWN = (
    {each.name for each in fields(Options)}.difference(
        ("access", "checkpoint", "start", "end", "start_time_ms", "end_time_ms", "stream_numbers")
    )
    | _TIMES
    | {"approx_bytes_per_trigger", *STREAM_NUMBERS}
)
"""The names of all options, in lower case."""


def open_controller(options: Options, *, is_first: bool = False) -> ControllerClient:
    """Return a connection to the controller that waits for ``PATIENCE_SECONDS`` for answers.

    If it ``is_first`` for this job, it waits for ``FIRST_PATIENCE_SECONDS`` for the first answer.
    """
    from segstore_client.controller.controller_client import ControllerClient

    return ControllerClient(
        options.controller,
        patience=PATIENCE_SECONDS,
        first_patience=FIRST_PATIENCE_SECONDS if is_first else None,
        access=options.access,
    )


def open_store_access(options: Options, known: str, ask: Callable[[], str]) -> StoreAccess:
    """Return a task's way to the stream's stores, with the token that the driver got.

    ``ask`` gets another token when that one expires. No controller is asked before.
    """
    tls = options.access.tls if parse_controller_address(options.controller).tls else None
    if not known and options.access.credentials is None:
        return StoreAccess(tls=tls, words=options.access.words)
    tokens = DelegationTokens(ask, known=known)
    return StoreAccess(tls=tls, tokens=tokens, words=options.access.words)


def stream_settings(numbers: Mapping[str, int]) -> StreamSettings:
    """Return the settings of a stream to create, given the values of ``STREAM_NUMBERS``."""
    from segstore_client.controller.stream_settings import (
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


def _read_access(values: Mapping[str, str]) -> ClientAccess:
    """Return who calls, by the options, our variables, and those of official clients."""
    given = AccessSettings(**{name: values.get(name, "") for name in ACCESS_OPTIONS})
    places = [given, read_environment(os.environ), read_official_environment(os.environ)]
    return build_access(places, words=WORDS)


def _time(values: Mapping[str, str], name: str) -> int | None:
    try:
        return parse_time(name, values[name]) if name in values else None
    except UsageError as error:
        raise OptionError(str(error)) from None


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
