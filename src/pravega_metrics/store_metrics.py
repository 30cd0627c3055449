"""The metrics of a segment store."""

from __future__ import annotations

from typing import Any, Final

from pravega_metrics.metrics import CounterMetric, Gauge, HistogramMetric, Metric, Unit

# ---- Requests ------------------------------------------------------------------------------------

APPEND_SECONDS: Final = HistogramMetric(
    "segstore_append_seconds",
    "Time from the arrival of an append until it was durable.",
    unit=Unit.SECONDS,
)
APPEND_BYTES: Final = CounterMetric(
    "segstore_append_bytes", "Bytes of appends that became durable.", unit=Unit.BYTES
)
APPEND_EVENTS: Final = CounterMetric(
    "segstore_append_events", "Events of appends that became durable."
)
READ_SECONDS: Final = HistogramMetric(
    "segstore_read_seconds",
    "Time from a read's arrival until its reply; reads that wait for tier 2 or new events apart.",
    labels=("waited",),
    unit=Unit.SECONDS,
)
READ_BYTES: Final = CounterMetric(
    "segstore_read_bytes", "Bytes that readers were sent.", unit=Unit.BYTES
)
REQUEST_SECONDS: Final = HistogramMetric(
    "segstore_request_seconds",
    "Time from a request's arrival until it was served, refused or failed; no appends and reads.",
    labels=("request", "result"),
    unit=Unit.SECONDS,
)
REFUSALS: Final = CounterMetric(
    "segstore_refusals", "Requests that were refused, by the reason.", labels=("reason",)
)
CONNECTIONS: Final = Gauge("segstore_connections", "Open connections of clients.")
CONNECTIONS_MAX: Final = Gauge(
    "segstore_connections_max", "Connections that the store accepts at once."
)
BUFFERED_BYTES: Final = Gauge(
    "segstore_buffered_bytes",
    "Bytes in the receive and send buffers of connections.",
    unit=Unit.BYTES,
)

# ---- Tier 1 --------------------------------------------------------------------------------------

JOURNAL_SECONDS: Final = HistogramMetric(
    "segstore_journal_sync_seconds",
    "Time from giving a batch to the journal's thread until its sync was known.",
    unit=Unit.SECONDS,
)
JOURNAL_BATCH_BYTES: Final = HistogramMetric(
    "segstore_journal_batch_bytes", "Bytes that one sync made durable.", unit=Unit.BYTES
)
LOG_HELD_BYTES: Final = Gauge(
    "segstore_log_held_bytes",
    "Bytes of tier 1 that a container needs until tier 2 has them.",
    labels=("container",),
    unit=Unit.BYTES,
)

# ---- Tier 2 --------------------------------------------------------------------------------------

TIER2_SECONDS: Final = HistogramMetric(
    "segstore_tier2_seconds",
    "Time of a call of tier 2.",
    labels=("call", "result"),
    unit=Unit.SECONDS,
)
TIER2_BYTES: Final = CounterMetric(
    "segstore_tier2_bytes",
    "Bytes written to and read from tier 2.",
    labels=("call",),
    unit=Unit.BYTES,
)
UNFLUSHED_BYTES: Final = Gauge(
    "segstore_unflushed_bytes",
    "Bytes of a container's segments that tier 2 does not have yet.",
    labels=("container",),
    unit=Unit.BYTES,
)

# ---- Containers ----------------------------------------------------------------------------------

CONTAINER_STATES: Final = Gauge(
    "segstore_container_state",
    "1 for the present state of each container, 0 for the others.",
    labels=("container", "state"),
)
CONTAINER_FAILURES: Final = Gauge(
    "segstore_container_failures",
    "Failures of a container since it was online last.",
    labels=("container",),
)
ACTIVE_SEGMENTS: Final = Gauge(
    "segstore_active_segments", "Segments of a container in memory.", labels=("container",)
)
THROTTLE_SECONDS: Final = Gauge(
    "segstore_throttle_seconds",
    "Delay that a container puts on writers now; infinite while nothing is accepted.",
    labels=("container", "reason"),
    unit=Unit.SECONDS,
)
RECOVERY_SECONDS: Final = Gauge(
    "segstore_recovery_seconds",
    "Time that the last recovery of a container took.",
    labels=("container",),
    unit=Unit.SECONDS,
)

# ---- Cache and disks -----------------------------------------------------------------------------

CACHE_BYTES: Final = Gauge(
    "segstore_cache_bytes",
    "Memory of the cache: for entries, for data, and the most that it may take.",
    labels=("kind",),
    unit=Unit.BYTES,
)
DISK_BYTES: Final = Gauge(
    "segstore_disk_bytes",
    "Bytes of the file system of a journal or of tier 2 that are used, and that are free.",
    labels=("path", "kind"),
    unit=Unit.BYTES,
)
DELAYS: Final = Gauge(
    "segstore_delay_reasons", "Reasons for which requests wait now, such as a full disk."
)

# ---- Streams -------------------------------------------------------------------------------------

STREAM_BYTES: Final = CounterMetric(
    "segstore_stream_append_bytes",
    "Bytes that were appended to a stream; the busiest streams by name, and the rest together.",
    labels=("scope", "stream"),
    unit=Unit.BYTES,
)
STREAM_EVENTS: Final = CounterMetric(
    "segstore_stream_append_events",
    "Events that were appended to a stream; the busiest streams by name, and the rest together.",
    labels=("scope", "stream"),
)

RECORDED: Final[tuple[Metric[Any], ...]] = (
    APPEND_SECONDS,
    APPEND_BYTES,
    APPEND_EVENTS,
    READ_SECONDS,
    READ_BYTES,
    REQUEST_SECONDS,
    REFUSALS,
    JOURNAL_SECONDS,
    JOURNAL_BATCH_BYTES,
    TIER2_SECONDS,
    TIER2_BYTES,
    DISK_BYTES,
)
"""The metrics that have recorders; the readings of the others are looked up."""
