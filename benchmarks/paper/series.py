"""The series of the figures: each a server, and the settings of the clients that load it.

A series is declared once, here, and named by the figures that show it. One whose server cannot be
made here is left out of them, and they say so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from foreign_servers.original_durable import OriginalDurable
from foreign_servers.peer import Peer

from benchmarks.peers.segstore_standalone import LOGGED, UNSYNCED, AssembledStore
from benchmarks.streams.rows import (
    CEILING,
    DURABLE,
    KAFKA,
    KAFKA_FSYNC,
    OURS,
    PULSAR,
    PULSAR_OFFLOAD,
)
from benchmarks.streams.servers import server

UNSYNCED_OURS = "ours-no-flush"
LOGGED_OURS = "ours-no-tier-2"
SPARK_OURS = "ours-by-spark"
UNSYNCED_ORIGINAL = "durable-no-flush"
LARGE_BATCH_KAFKA = "kafka-10ms-1mb"
SINGLE_PULSAR = "pulsar-no-batch"
DRIVE = "drive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A server by its key, and the fields of a ``Load`` in which its clients differ."""

    key: str
    name: str
    server_key: str = ""
    """The key of its server, unless it is that of the series."""
    make: Callable[[], Peer] | None = None
    """Makes a server that ``benchmarks.streams.servers`` does not know."""
    client: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def server(self) -> Peer | None:
        """Return the server, or None if there is none by this key."""
        if self.make is not None:
            return self.make()
        try:
            return server(self.server_key or self.key)
        except KeyError:
            return None

    @property
    def is_here(self) -> bool:
        """Return whether it can be measured here."""
        return self.key == DRIVE or self.server() is not None


ALL = (
    Series(key=OURS, name="segstore"),
    Series(key=UNSYNCED_OURS, name="segstore (no flush)", make=lambda: AssembledStore(UNSYNCED)),
    Series(key=LOGGED_OURS, name="segstore (no tier 2)", make=lambda: AssembledStore(LOGGED)),
    Series(key=SPARK_OURS, name="segstore, read by Spark", server_key=OURS),
    Series(key=DURABLE, name="original (flush)"),
    Series(
        key=UNSYNCED_ORIGINAL,
        name="original (no flush)",
        make=lambda: OriginalDurable(syncs_journal=False),
    ),
    Series(key=KAFKA, name="Kafka (no flush)"),
    Series(key=KAFKA_FSYNC, name="Kafka (flush)"),
    Series(
        key=LARGE_BATCH_KAFKA,
        name="Kafka (10 ms, 1 MB)",
        server_key=KAFKA,
        client={"linger_ms": 10.0, "batch_bytes": 2**20},
    ),
    Series(key=PULSAR, name="Pulsar (batch)"),
    Series(
        key=SINGLE_PULSAR,
        name="Pulsar (no batch)",
        server_key=PULSAR,
        client={"batch_bytes": 0},
    ),
    Series(key=PULSAR_OFFLOAD, name="Pulsar (offload)"),
    Series(key=CEILING, name="nothing stored"),
    Series(key=DRIVE, name="the drive, synced"),
)
BY_KEY = {series.key: series for series in ALL}
