"""The amount of work in each row: the usual size, a quick one, and the one of the test suite."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Times are in seconds."""

    rounds: int = 2
    warm_seconds: float = 40.0
    """Load before anything is measured: a Java server is cold for most of its first minute."""
    row_warmup_seconds: float = 3.0
    commit_seconds: float = 10.0
    rate_seconds: float = 12.0
    writers: int = 16
    split_seconds: float = 25.0
    split_period_seconds: float = 5.0
    begin_segments: int = 1_000
    begins: int = 15
    creates: int = 200
    large_segments: int = 5_000
    scales: int = 3
    scale_rate: int = 1_000
    warm_open: int = 10_000
    """Transactions opened before memory is measured for the first time: what the processes take
    once, for buffers and caches, is not what one transaction takes."""
    open: int = 10_000
    settle_seconds: float = 8.0
    waiting_calls: int = 1_000
    waiting_seconds: float = 5.0
    streams: int = 10_000
    tagged: int = 10
    deleted_streams: int = 1_000
    idle_seconds: float = 20.0
    epochs: int = 10_000
    epochs_compared: int = 100
    append_turns: int = 4
    append_warmup_seconds: float = 15.0
    append_seconds: float = 10.0


USUAL = Size()
QUICK = Size(
    rounds=1,
    warm_seconds=10,
    row_warmup_seconds=1,
    commit_seconds=5,
    rate_seconds=5,
    split_seconds=10,
    begins=5,
    creates=50,
    large_segments=1_000,
    scales=1,
    warm_open=500,
    open=2_000,
    settle_seconds=3,
    waiting_seconds=2,
    streams=1_000,
    deleted_streams=100,
    idle_seconds=5,
    epochs=300,
    epochs_compared=30,
    append_turns=1,
    append_seconds=5,
)
SMALL = Size(
    rounds=1,
    warm_seconds=0,
    row_warmup_seconds=0.2,
    commit_seconds=0.5,
    rate_seconds=0.5,
    writers=2,
    split_seconds=2,
    split_period_seconds=1,
    begin_segments=8,
    begins=2,
    creates=3,
    large_segments=8,
    scales=1,
    scale_rate=100,
    warm_open=10,
    open=50,
    settle_seconds=0.1,
    waiting_calls=10,
    waiting_seconds=0.3,
    streams=20,
    tagged=3,
    deleted_streams=10,
    idle_seconds=0.5,
    epochs=6,
    epochs_compared=2,
    append_turns=1,
    append_warmup_seconds=3,
    append_seconds=2,
)
