"""The original's names against our declarations, requests and calls: none leads nowhere."""

from __future__ import annotations

from collections import Counter

from pravega_controller.rpc import service  # noqa: F401 (its handlers fill the table)
from pravega_controller.rpc.rpc import RPCS
from pravega_metrics import controller_metrics, store_metrics
from pravega_metrics.metrics import METRICS
from pravega_metrics.original_names import ORIGINAL_NAMES
from pravega_wire.commands import COMMANDS, Request

REQUESTS = {each.__name__ for each in COMMANDS.values() if issubclass(each, Request)}
VALUES = {
    "request": REQUESTS,
    "result": {"served", "ok"},
    "method": set(RPCS),
    "code": {"OK"},
    "waited": {"yes", "no"},
    "call": {"write", "read", "info", "lengths", "delete", "list"},
    "kind": {"data", "entries", "unevictable", "capacity"},
}
"""The values of labels that a name may choose."""


def test_each_name_is_of_a_metric_and_of_its_labels() -> None:
    for ours, names in ORIGINAL_NAMES.items():
        labels = {*METRICS[ours].labels}
        for each in names:
            assert each.name.startswith(("pravega_segmentstore_", "pravega_controller_"))
            assert {*each.where, *each.labels.values()} <= labels
            for label, value in each.where.items():
                assert value in VALUES[label]


def test_what_distinguishes_readings_is_chosen_or_told() -> None:
    """Two readings of ours must not become two lines of the same name."""
    for ours, names in ORIGINAL_NAMES.items():
        for each in names:
            assert {*each.where, *each.labels.values()} == {*METRICS[ours].labels}


def test_no_name_comes_twice() -> None:
    counts = Counter(each.name for names in ORIGINAL_NAMES.values() for each in names)
    assert max(counts.values()) == 1


def test_each_metric_is_recorded_or_looked_up() -> None:
    for module in (store_metrics, controller_metrics):
        for metric in module.RECORDED:
            assert METRICS[metric.name] is metric
