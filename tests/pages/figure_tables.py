"""Makes the tables of figures of the README and of the summary from the last measurements.

Owns: which figures they show, and their order: those that are worse than a peer's come first.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STREAMS = Path(__file__).parents[2] / "docs" / "performance" / "streams.json"
PEERS = {
    "durable": "Pravega 0.13.0, durable",
    "kafka": "Kafka 3.9.0",
    "kafka-fsync": "Kafka 3.9.0, each batch synced",
}
"""The columns of peers, by their names in the measurements."""
SMALL, LARGE, KEYS = "100 B, 10,000/s", "10 KB, at full speed", "100 B with keys, 10,000/s"
SUMMARY = {
    "L1": (f"{SMALL}, 1 segment", ("publish p50", "publish p99", "CPU", "peak RSS")),
    "L2": (f"{SMALL}, 16 segments", ("publish p50", "publish p99", "CPU", "peak RSS")),
    "P": (f"{KEYS}, 16 segments", ("publish p50", "publish p99", "CPU")),
    "L3": ("100 B, 100,000/s, 1 segment", ("publish p50", "publish p99")),
    "L5": ("10 KB, 5,000/s, 1 segment", ("publish p50", "publish p99")),
    "T1": ("100 B, at full speed, 1 segment", ("published events", "read events", "peak RSS")),
    "T2": ("100 B, at full speed, 16 segments", ("published events", "read events")),
    "T3": (f"{LARGE}, 1 segment", ("published bytes", "publish p99", "peak RSS")),
    "T4": (f"{LARGE}, 16 segments", ("published bytes", "publish p99", "peak RSS")),
    "D1": ("one reader drains 10 KB events from the cache", ("drained bytes",)),
    "D3": ("one reader drains 100 B events from the cache", ("drained bytes",)),
    "D4-D1": ("one reader drains 10 KB events from tier 2", ("drained bytes",)),
    "R2": ("a start, and then nothing to do", ("start to ready", "idle RSS", "idle CPU")),
}
"""The rows of the summary, each with the words for its work and its figures."""
FRONT = (
    ("L1", "CPU", f"server's CPU per event, {SMALL}", "kafka-fsync"),
    ("D3", "drained bytes", "one reader drains 100 B events", "kafka"),
    ("L1", "publish p99", f"time to the acknowledgement, p99, {SMALL}", "kafka-fsync"),
    ("L1", "peak RSS", f"peak of memory, {SMALL}", "kafka-fsync"),
    ("T3", "published bytes", f"written, {LARGE}", "kafka-fsync"),
)
"""The figures of the README: row, figure, words, and the Kafka beside which it stands."""
_LONG_NAMES = {"CPU": "server CPU per event"}
_UNITS = {"us": "µs", "events/s": "events/s"}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a row, for each server that was measured."""

    unit: str
    is_better_higher: bool
    values: dict[str, float]

    def advantage(self, peer: str) -> float | None:
        """Return how many times better ours is than a peer's; None without its figure."""
        ours, its = self.values["ours"], self.values.get(peer)
        if its is None:
            return None
        return ours / its if self.is_better_higher else its / ours

    def least_advantage(self) -> float:
        """Return the advantage over the best of the peers."""
        found = [each for peer in PEERS if (each := self.advantage(peer)) is not None]
        return min(found)


def table_of_summary() -> str:
    """Return the figures of all rows of the summary, the worst beside the peers first."""
    measured = json.loads(STREAMS.read_text("utf-8"))
    rows = []
    for row, (work, names) in SUMMARY.items():
        for name in names:
            figure = read_figure(measured, row, name)
            peers = (figure.values.get(peer) for peer in PEERS)
            cells = (
                f"{work}: {_LONG_NAMES.get(name, name)} ({_UNITS.get(figure.unit, figure.unit)})",
                show(figure.values["ours"]),
                *("" if value is None else show(value) for value in peers),
                show(figure.least_advantage()),
            )
            rows.append((figure.least_advantage(), f"| {' | '.join(cells)} |\n"))
    head = ("work and figure", "segstore", *PEERS.values(), "times better than the best")
    lines = [line for _, line in sorted(rows, key=lambda each: each[0])]
    return f"| {' | '.join(head)} |\n|{' --- |' * len(head)}\n" + "".join(lines)


def table_of_front() -> str:
    """Return the figures of the README."""
    measured = json.loads(STREAMS.read_text("utf-8"))
    lines = []
    for row, name, words, kafka in FRONT:
        figure = read_figure(measured, row, name)
        advantage = figure.advantage(kafka)
        assert advantage is not None
        cells = (
            words,
            f"{show(figure.values['ours'])} {_UNITS.get(figure.unit, figure.unit)}",
            show(figure.values[kafka]) + "*" * (kafka == "kafka"),
            show(figure.values["durable"]),
            f"{advantage:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    head = ("", "segstore", "Kafka, synced", "Pravega", "better than Kafka by")
    return f"| {' | '.join(head)} |\n|{' --- |' * len(head)}\n" + "".join(lines)


def read_figure(measured: dict[str, Any], row: str, name: str) -> Figure:
    """Return a figure of a row, the median of its rounds."""
    wanted = _LONG_NAMES.get(name, name)
    unit, better, values = "", "", {}
    for server, rounds in measured[row]["outcomes"].items():
        found = [each for one in rounds for each in one["numbers"] if each[0] == wanted]
        if found:
            _, unit, better, _ = found[0]
            values[server] = statistics.median(float(each[3]) for each in found)
    return Figure(unit, better == "higher", values)


def show(value: float) -> str:
    """Return a number with three digits that count, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
