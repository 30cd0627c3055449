"""The sizes of the figures' works: the usual one and the one of the test suite."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Times are in seconds."""

    rounds: int = 3
    """At most; a further round of a work is run if there is time for it."""
    minutes_max: float = 180.0
    rehearsal_seconds: float = 45.0
    """Load of a fresh server before its first point: a Java server is cold for most of its first
    minute."""
    rehearsal_seconds_max: float | None = 75.0
    """The rehearsal goes on until latencies are steady, up to this."""
    warmup_seconds: float = 10.0
    """Load before each point, for the client, which is a new process."""
    warmup_seconds_max: float | None = 16.0
    warmup_window_seconds: float = 3.0
    seconds: float = 10.0
    """The measured time of each point."""
    drain_seconds: float = 30.0
    client_heap: str = "1g"
    many_clients_heap: str = "4g"
    rate_max: float | None = None
    """Events a second of any load, those without a limit included."""
    segments_max: int = 100_000
    producers_max: int = 1_000
    points_max: int | None = None
    """Of each panel: the first and the last ones."""
    backlog_mb: float = 10_000.0
    backlog_mb_per_second: float = 50.0
    reading_seconds_max: float = 240.0
    """Readers that have not caught up by then never will."""
    scaling_rate: float = 1_000.0
    """Events a second, of 10 KB; a fifth of it is the target of a segment."""
    scaling_seconds: float = 420.0
    """A rate of five times the target is above twice the target for five minutes before a stream is
    split; then two minutes count."""
    scaling_faster: float = 1.0
    """The times of our own scaling are divided by this; those of the original cannot be."""
    bookies: int = 3
    needs_disk: bool = True
    """Whether a work that needs much of the disk is refused when there is less."""


USUAL = Size()
SMALL = Size(
    rounds=1,
    rehearsal_seconds=0.5,
    rehearsal_seconds_max=None,
    warmup_seconds=0.5,
    warmup_seconds_max=None,
    seconds=1.0,
    client_heap="256m",
    many_clients_heap="256m",
    rate_max=500.0,
    segments_max=8,
    producers_max=2,
    points_max=2,
    backlog_mb=8.0,
    backlog_mb_per_second=4.0,
    reading_seconds_max=30.0,
    scaling_rate=100.0,
    scaling_seconds=40.0,
    scaling_faster=60.0,
    bookies=1,
    needs_disk=False,
)
"""It takes seconds for each point, and its load is small."""
