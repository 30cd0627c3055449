"""Makes the tables of metrics, and of the original's names for them, from their declarations.

Owns: the form of a row.
"""

from __future__ import annotations

from types import ModuleType

from pravega_metrics import controller_metrics, process_metrics, store_metrics
from pravega_metrics.metrics import METRICS, Kind, Metric
from pravega_metrics.original_names import ORIGINAL_NAMES, OriginalName

SERVERS = {
    "segment_store": store_metrics,
    "controller": controller_metrics,
    "process": process_metrics,
}
"""The declarations by what they are about; ``process`` are those of both."""
_SUFFIXES = {Kind.COUNTER: "_total", Kind.GAUGE: "", Kind.HISTOGRAM: ""}


def table_of_metrics(server: str) -> str:
    """Return the metrics of a server, in the order of their declaration."""
    lines = ["| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n"]
    for metric in declared_in(SERVERS[server]):
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        name = metric.name + _SUFFIXES[metric.kind]
        lines.append(f"| `{name}` | {metric.kind.value} | {labels} | {metric.help} |\n")
    return "".join(lines)


def table_of_original_names() -> str:
    """Return the original's names, each with ours and the labels that choose its readings."""
    lines = ["| the original's | here |\n| --- | --- |\n"]
    for ours, names in ORIGINAL_NAMES.items():
        metric = METRICS[ours]
        for each in names:
            lines.append(f"| `{told_as(each, metric)}` | `{chosen_by(each, metric)}` |\n")
    return "".join(lines)


def declared_in(module: ModuleType) -> list[Metric]:
    """Return the metrics that a module declares."""
    return [each for each in vars(module).values() if isinstance(each, Metric)]


def told_as(original: OriginalName, metric: Metric) -> str:
    """Return the name of the original's lines; a histogram of ours is a summary there."""
    return original.name + _SUFFIXES[metric.kind]


def chosen_by(original: OriginalName, metric: Metric) -> str:
    """Return the readings that a name of the original stands for, as Prometheus selects them."""
    chosen = ", ".join(f'{label}="{value}"' for label, value in original.where.items())
    return metric.name + _SUFFIXES[metric.kind] + (f"{{{chosen}}}" if chosen else "")
