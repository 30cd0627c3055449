"""A dashboard of Grafana that shows the metrics of a store.

Owns: ``ROWS``, and the document that Grafana imports.

A panel is declared by its queries. Its place follows from the order, and its description from the
metrics that it shows.

Invariants:
1. A query names only metrics, labels and suffixes that are declared. Held by
   ``test_expressions_name_what_is_declared``.
2. While clients write and read, each panel shows something, but those that say why not. Held by
   ``test_every_panel_shows_something_under_load``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

# They declare their metrics.
from pravega_metrics import controller_metrics, process_metrics, store_metrics
from pravega_metrics.metrics import METRICS

DECLARED: Final = (controller_metrics, process_metrics, store_metrics)
SCHEMA_VERSION: Final = 39
PANEL_WIDTH: Final = 8
PANEL_HEIGHT: Final = 8
WIDTH: Final = 24
INTERVAL: Final = "$__rate_interval"
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_NAME: Final = re.compile(r"segstore_\w+")
_SUFFIX: Final = re.compile(r"_(?:total|bucket|count|sum)$")
_USED: Final = 'kind="used"'
_OF: Final = '{job=~"$job", host=~"$host"}'


class Show(StrEnum):
    """The unit of a panel's numbers, by Grafana's names."""

    NUMBER = "short"
    BYTES = "bytes"
    BYTES_RATE = "Bps"
    EVENTS_RATE = "ops"
    SECONDS = "s"
    SHARE = "percentunit"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the name of each of its lines."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. ``why_empty`` says why it may show nothing while clients write and read."""

    title: str
    show: Show
    queries: tuple[Query, ...]
    why_empty: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def _of(*matchers: str) -> str:
    return "{" + ", ".join((_OF[1:-1], *matchers)) + "}"


def _legend(by: str) -> str:
    return " ".join(f"{{{{{each}}}}}" for each in by.split(", ") if each)


def _sum_of_rate(metric: str, by: str, *matchers: str) -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}{_of(*matchers)}[{INTERVAL}]))"


def _rate(metric: str, by: str, *matchers: str, legend: str | None = None) -> Query:
    return Query(_sum_of_rate(metric, by, *matchers), _legend(by) if legend is None else legend)


def _busiest(metric: str, by: str) -> Query:
    return Query(f"topk(10, {_sum_of_rate(metric, by)})", _legend(by))


def _value(metric: str, by: str, *matchers: str, note: str = "") -> Query:
    return Query(f"max by ({by}) ({metric}{_of(*matchers)})", _legend(by) + note)


def _quantile(quantile: float, metric: str, by: str = "", *matchers: str) -> Query:
    rates = _sum_of_rate(f"{metric}_bucket", f"{by}, le" if by else "le", *matchers)
    legend = f"{_legend(by)} p{round(100 * quantile)}".strip()
    return Query(f"histogram_quantile({quantile}, {rates})", legend)


def _quantiles(metric: str, by: str = "", *matchers: str) -> tuple[Query, Query]:
    return _quantile(0.5, metric, by, *matchers), _quantile(0.99, metric, by, *matchers)


def _panel(title: str, show: Show, *queries: Query, why_empty: str = "") -> Panel:
    return Panel(title, show, queries, why_empty)


_PROCESS: Final = "component, host"
_CONTAINER: Final = "host, container"
_STREAM: Final = "scope, stream"
_OVERVIEW: Final = (
    _panel(
        "Servers that answer",
        Show.NUMBER,
        Query('max by (store) (segstore_store_up{job=~"$job"})', "{{store}}"),
        Query('max by (host) (segstore_controller_ready{job=~"$job"})', "{{host}} is ready"),
    ),
    _panel("Events appended", Show.EVENTS_RATE, _rate("segstore_append_events_total", "host")),
    _panel(
        "Bytes appended and read",
        Show.BYTES_RATE,
        _rate("segstore_append_bytes_total", "", legend="appended"),
        _rate("segstore_read_bytes_total", "", legend="read"),
    ),
    _panel("Time of an append", Show.SECONDS, *_quantiles("segstore_append_seconds")),
    _panel(
        "Time of a read that finds data in memory",
        Show.SECONDS,
        *_quantiles("segstore_read_seconds", "", 'waited="no"'),
    ),
    _panel(
        "Time of a read that waits for tier 2 or events",
        Show.SECONDS,
        *_quantiles("segstore_read_seconds", "", 'waited="yes"'),
    ),
    _panel(
        "Other requests",
        Show.EVENTS_RATE,
        _rate("segstore_request_seconds_count", "request, result"),
    ),
    _panel(
        "Time of other requests",
        Show.SECONDS,
        _quantile(0.99, "segstore_request_seconds", "request"),
    ),
    _panel(
        "Refusals",
        Show.EVENTS_RATE,
        _rate("segstore_refusals_total", "reason"),
        why_empty="nothing is refused",
    ),
)
_STREAMS: Final = (
    _panel(
        "Bytes appended", Show.BYTES_RATE, _busiest("segstore_stream_append_bytes_total", _STREAM)
    ),
    _panel(
        "Events appended",
        Show.EVENTS_RATE,
        _busiest("segstore_stream_append_events_total", _STREAM),
    ),
)
_JOURNAL: Final = (
    _panel("Time of a sync", Show.SECONDS, *_quantiles("segstore_journal_sync_seconds", "host")),
    _panel("Syncs", Show.EVENTS_RATE, _rate("segstore_journal_sync_seconds_count", "host")),
    _panel("Bytes of a sync", Show.BYTES, *_quantiles("segstore_journal_batch_bytes")),
    _panel(
        "Bytes of the journal that tier 2 lacks",
        Show.BYTES,
        _value("segstore_log_held_bytes", _CONTAINER),
    ),
    _panel(
        "Disks, used",
        Show.SHARE,
        Query(
            f"sum by (host, path) (segstore_disk_bytes{_of(_USED)})"
            f" / sum by (host, path) (segstore_disk_bytes{_OF})",
            "{{host}} {{path}}",
        ),
    ),
    _panel("Disks, free", Show.BYTES, _value("segstore_disk_bytes", "host, path", 'kind="free"')),
)
_TIER_2: Final = (
    _panel(
        "Time of a call",
        Show.SECONDS,
        *_quantiles("segstore_tier2_seconds", "call", 'result="ok"'),
    ),
    _panel(
        "Calls that fail",
        Show.EVENTS_RATE,
        _rate("segstore_tier2_seconds_count", "call, result", 'result!~"ok|Cancelled"'),
        why_empty="no call fails",
    ),
    _panel("Bytes written and read", Show.BYTES_RATE, _rate("segstore_tier2_bytes_total", "call")),
    _panel(
        "Bytes of segments that tier 2 lacks",
        Show.BYTES,
        _value("segstore_unflushed_bytes", _CONTAINER),
    ),
)
_MEMORY: Final = (
    _panel("Cache", Show.BYTES, _value("segstore_cache_bytes", "host, kind")),
    _panel(
        "Delay of writers",
        Show.SECONDS,
        _value("segstore_throttle_seconds", f"{_CONTAINER}, reason"),
    ),
    _panel(
        "Reasons for which requests wait", Show.NUMBER, _value("segstore_delay_reasons", "host")
    ),
)
_CONTAINERS: Final = (
    _panel(
        "Containers by state",
        Show.NUMBER,
        Query(f"sum by (state) (segstore_container_state{_OF})", "{{state}}"),
        Query('sum by (store) (segstore_store_containers{job=~"$job"})', "{{store}} has"),
    ),
    _panel("Failures in a row", Show.NUMBER, _value("segstore_container_failures", _CONTAINER)),
    _panel(
        "Time of the last recovery",
        Show.SECONDS,
        _value("segstore_recovery_seconds", _CONTAINER),
    ),
    _panel("Segments in memory", Show.NUMBER, _value("segstore_active_segments", _CONTAINER)),
)
_CONTROLLERS: Final = (
    _panel("Calls", Show.EVENTS_RATE, _rate("segstore_rpc_seconds_count", "method, code")),
    _panel("Time of a call", Show.SECONDS, _quantile(0.99, "segstore_rpc_seconds", "method")),
    _panel(
        "Connections of stores",
        Show.NUMBER,
        _value("segstore_connections", "host"),
        _value("segstore_connections_max", "host", note=" at most"),
    ),
    _panel("Buffers of connections", Show.BYTES, _value("segstore_buffered_bytes", "host")),
)
_PROCESSES: Final = (
    _panel("Processors used", Show.SHARE, _rate("segstore_process_cpu_seconds_total", _PROCESS)),
    _panel("Memory", Show.BYTES, _value("segstore_process_resident_bytes", _PROCESS)),
    _panel(
        "Lateness of the event loop",
        Show.SECONDS,
        _quantile(0.99, "segstore_loop_lag_seconds", _PROCESS),
    ),
    _panel(
        "Open files",
        Show.NUMBER,
        _value("segstore_process_open_files", _PROCESS),
        _value("segstore_process_open_files_max", _PROCESS, note=" at most"),
    ),
    _panel(
        "Age of the processes",
        Show.SECONDS,
        Query(
            f"time() - max by ({_PROCESS}) (segstore_process_start_time_seconds{_OF})",
            "{{component}} {{host}}",
        ),
    ),
    _panel(
        "Time until certificates end",
        Show.SECONDS,
        Query(
            f"min by ({_PROCESS}) (segstore_certificate_end_time_seconds{_OF}) - time()",
            "{{component}} {{host}}",
        ),
        why_empty="without TLS",
    ),
)
ROWS: Final = (
    Row("Overview", _OVERVIEW),
    Row("Busiest streams", _STREAMS),
    Row("Journal and disks", _JOURNAL),
    Row("Tier 2", _TIER_2),
    Row("Cache and delays", _MEMORY),
    Row("Containers", _CONTAINERS),
    Row("Controllers and connections", _CONTROLLERS),
    Row("Processes", _PROCESSES),
)
"""The rows of the dashboard, from the top."""


def make_dashboard() -> dict[str, Any]:
    """Return the document that Grafana imports."""
    return {
        "uid": "segstore",
        "title": "segstore",
        "tags": ["segstore"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "templating": {"list": _make_variables()},
        "annotations": {"list": []},
        "panels": list(_make_panels()),
    }


def _make_variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        _make_variable("job", "label_values(segstore_controller_ready, job)"),
        _make_variable(
            "host", 'label_values(segstore_process_start_time_seconds{job=~"$job"}, host)'
        ),
    ]


def _make_variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _make_panels() -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for row in ROWS:
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
        }
        top += 1
        for place, panel in enumerate(row.panels):
            line, column = divmod(place, WIDTH // PANEL_WIDTH)
            number += 1
            yield _make_panel(panel, number, PANEL_WIDTH * column, top + PANEL_HEIGHT * line)
        top += PANEL_HEIGHT * -(-len(row.panels) // (WIDTH // PANEL_WIDTH))
        number += 1


def _make_panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": _describe(panel),
        "datasource": _DATASOURCE,
        "gridPos": {"x": left, "y": top, "w": PANEL_WIDTH, "h": PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.show.value, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _DATASOURCE,
                "editorMode": "code",
                "range": True,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }


def _describe(panel: Panel) -> str:
    """Return the sentences about the metrics that a panel shows."""
    names = [name for query in panel.queries for name in _NAME.findall(query.expression)]
    sentences = dict.fromkeys(METRICS[_SUFFIX.sub("", name)].help for name in names)
    return " ".join(sentences)
