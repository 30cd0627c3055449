"""The sizes of a cluster's works: the usual one and the one of the test suite."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Times are in seconds, sizes in millions of bytes."""

    rounds: int = 1
    warmup_seconds: float = 45.0
    """Load before anything is measured: a Java server is cold for most of its first minute."""
    warmup_seconds_max: float | None = 60.0
    """The warm-up of a load goes on until latencies are steady, up to this."""
    seconds: float = 15.0
    client_heap: str = "1g"
    rate_max: float | None = None
    """Events a second of any load."""
    unflushed_mb: float = 1_000.0
    fill_mb_per_second: float = 25.0
    fill_seconds_max: float = 180.0
    watched_rate: float = 400.0
    """Events a second of the client whose gaps are measured."""
    watched_writers: int = 4
    kill_seconds: float = 85.0
    """The client is watched for so long after its warm-up: a container moves within this time, and
    a client that asks again after 51 s is back."""
    move_seconds: float = 50.0
    warm_log_mb: float = 256.0
    """The log with which a store is warmed up before it opens the whole one."""
    warm_openings: int = 2


USUAL = Size()
SMALL = Size(
    warmup_seconds=1.0,
    warmup_seconds_max=None,
    seconds=1.0,
    client_heap="256m",
    rate_max=1_000.0,
    unflushed_mb=4.0,
    fill_mb_per_second=4.0,
    watched_writers=1,
    kill_seconds=75.0,
    # A client whose addresses are that young asks again after 31 or 51 s.
    move_seconds=75.0,
    warm_log_mb=1.0,
    warm_openings=1,
)
