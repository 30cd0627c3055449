"""The metrics of a controller."""

from __future__ import annotations

from typing import Any, Final

from pravega_metrics.metrics import Gauge, HistogramMetric, Metric, Unit

RPC_SECONDS: Final = HistogramMetric(
    "segstore_rpc_seconds",
    "Time from the arrival of a call until its answer, by the call and its gRPC status.",
    labels=("method", "code"),
    unit=Unit.SECONDS,
)
STORE_UP: Final = Gauge(
    "segstore_store_up",
    "1 for a segment store that answered this scrape, 0 for one that did not.",
    labels=("store",),
)
STORE_CONTAINERS: Final = Gauge(
    "segstore_store_containers", "Containers that a segment store serves.", labels=("store",)
)
IS_READY: Final = Gauge(
    "segstore_controller_ready", "1 while the controller can read its metadata."
)

RECORDED: Final[tuple[Metric[Any], ...]] = (RPC_SECONDS,)
"""The metrics that have recorders; the readings of the others are looked up."""
