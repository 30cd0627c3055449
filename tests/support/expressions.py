"""The metrics and labels that an expression of Prometheus names, compared with the declarations.

Owns: ``find_undeclared``. It knows as much of the language as the expressions of this project use:
selectors with matchers, and lists of labels behind ``by``, ``on``, ``ignoring`` and ``without``.
"""

from __future__ import annotations

import re

# They declare their metrics.
import pravega_metrics.controller_metrics
import pravega_metrics.process_metrics
import pravega_metrics.store_metrics  # noqa: F401
from pravega_metrics.metrics import METRICS, Kind

OF_EVERY_TARGET = {"job", "instance"}
"""Labels that Prometheus adds."""
OF_EVERY_PROCESS = {"component", "host"}
"""Labels that a controller adds to the readings of each process."""
SUFFIXES = {
    Kind.COUNTER: {"_total"},
    Kind.GAUGE: {""},
    Kind.HISTOGRAM: {"_bucket", "_count", "_sum"},
}
WORDS = {
    *("by", "on", "ignoring", "without", "and", "or", "unless", "Inf"),
    *("sum", "min", "max", "topk", "rate", "changes", "predict_linear", "time"),
    "histogram_quantile",
}
"""The functions, operators and values that expressions use."""


def split_name(name: str) -> tuple[str, str]:
    """Return a metric and the suffix of what is told of it."""
    if name in METRICS:
        return name, ""
    metric, _, suffix = name.rpartition("_")
    return metric, f"_{suffix}"


def labels_of(name: str) -> set[str]:
    """Return the labels of what is told by a name; no declared name has none."""
    if name == "up":
        return OF_EVERY_TARGET
    metric, suffix = split_name(name)
    if metric not in METRICS or suffix not in SUFFIXES[METRICS[metric].kind]:
        return set()
    own = {*METRICS[metric].labels, *OF_EVERY_TARGET, *OF_EVERY_PROCESS}
    return own | {"le"} if suffix == "_bucket" else own


def result_labels(expression: str) -> set[str]:
    """Return the labels that the result of an expression has, without those of its buckets."""
    lists = re.findall(r"\bby \(([^)]*)\)", expression)
    if not lists:
        return set.union(*(labels_of(name) for name in names_in(expression)))
    return {each.strip() for each in lists[0].split(",")} - {"le"}


def names_in(expression: str) -> list[str]:
    """Return the metrics that an expression names, as they are told."""
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", "", expression)
    text = re.sub(r"\b(?:by|on|ignoring|without) \([^)]*\)", "", text)
    return [each for each in re.findall(r"[a-zA-Z_]\w*", text) if each not in WORDS]


def find_undeclared(expression: str) -> list[str]:
    """Return what an expression names that nothing declares."""
    found = []
    known: set[str] = set()
    for name in names_in(expression):
        known |= labels_of(name)
        if not labels_of(name):
            found.append(name)
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", expression):
        for label in re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers):
            if label not in labels_of(name):
                found.append(f"{name}{{{label}}}")
    for listed in re.findall(r"\b(?:by|on|ignoring|without) \(([^)]*)\)", expression):
        found += [each.strip() for each in listed.split(",") if each.strip() not in known]
    return found
