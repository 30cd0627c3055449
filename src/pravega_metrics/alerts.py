"""The alerts of a store: when Prometheus alerts people, and in which words.

Owns: ``ALERTS``, and the file of rules that Prometheus reads.

An alert is declared once: its rule and its section of the runbook both follow from its name.
Expressions refer to metrics of this package, and to ``up``, which Prometheus itself records of each
target. They never name ``instance``: when a controller ends, another one reports the stores.

Invariants:
1. An expression names only metrics, labels and suffixes that are declared. Held by
   ``test_expressions_name_what_is_declared``.
2. When an alert's sentence names a label, the result of its expression has that label. Held by
   ``test_sentences_name_labels_that_the_result_has``.
3. Each alert has a section in the runbook, and each section an alert or a reason. Held by
   ``test_every_alert_has_its_section``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

JOB: Final = "segstore"
RUNBOOK: Final = "docs/runbook.md"
_JOB: Final = "JOB"
"""The text that stands for the job of the scrape configuration in an expression."""
_DURATION: Final = re.compile(r"\[(\d+)([smh])\]")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
EVERYDAY_REFUSALS: Final = (
    "NoSuchSegmentError",
    "SegmentExistsError",
    "SegmentSealedError",
    "SegmentTruncatedError",
    "BadOffsetError",
    "BadAttributeUpdateError",
    "TableKeyMissingError",
    "TableKeyVersionError",
    "TableNotEmptyError",
)
"""Refusals by which clients find out what is there; they say nothing about the store."""
EXPECTED_RESULTS: Final = ("ok", "Cancelled", "ChunkNotFoundError", "InvalidChunkOffsetError")
"""Results of calls of tier 2 that are no failures: the store asks what is there."""


class Severity(StrEnum):
    """The urgency of an alert."""

    CRITICAL = "critical"
    """Somebody has to look now: clients wait, or soon will."""
    WARNING = "warning"
    """Somebody has to look today."""
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. ``hold_seconds`` is how long its expression has to be true, and ``sentence`` says
    to people what is so."""

    name: str
    expression: str
    hold_seconds: int
    severity: Severity
    sentence: str

    @property
    def anchor(self) -> str:
        """Return the anchor of its section in the runbook."""
        return self.name.lower()


_USED: Final = (
    'segstore_disk_bytes{kind="used"} / ignoring (kind) (sum without (kind) (segstore_disk_bytes))'
)
_DISK: Final = f"max by (job, host, path) ({_USED})"
_DISK_SENTENCE: Final = (
    "{{ $value | humanizePercentage }} of the disk of {{ $labels.path }} are used"
)


_CERTIFICATE: Final = (
    "min by (job, component, host) (segstore_certificate_end_time_seconds) - time()"
)
_CERTIFICATE_SENTENCE: Final = (
    "The certificate of the {{ $labels.component }} {{ $labels.host }} ends in"
    " {{ $value | humanizeDuration }}"
)


def _quantile(metric: str, labels: str, where: str = "") -> str:
    buckets = f"rate({metric}_bucket{where}[5m])"
    return f"histogram_quantile(0.99, sum by ({labels}, le) ({buckets}))"


ALERTS: Final = (
    # ---- What does not answer --------------------------------------------------------------------
    Alert(
        "SegstoreControllerUnreachable",
        f'up{{job="{_JOB}"}} == 0',
        60,
        Severity.CRITICAL,
        "The controller at {{ $labels.instance }} does not answer Prometheus.",
    ),
    Alert(
        "SegstoreStoreDown",
        "min by (job, store) (segstore_store_up) == 0",
        60,
        Severity.CRITICAL,
        "Segment store {{ $labels.store }} does not answer the controller.",
    ),
    Alert(
        "SegstoreControllerNotReady",
        "min by (job, host) (segstore_controller_ready) == 0",
        60,
        Severity.CRITICAL,
        "Controller {{ $labels.host }} cannot read its metadata.",
    ),
    Alert(
        "SegstoreRestartsOften",
        "max by (job, component, host) (changes(segstore_process_start_time_seconds[1h])) > 2",
        0,
        Severity.WARNING,
        "The {{ $labels.component }} {{ $labels.host }} was started {{ $value }} times in an hour.",
    ),
    # ---- Containers ------------------------------------------------------------------------------
    Alert(
        "SegstoreContainerOffline",
        'max by (job, host, container) (segstore_container_state{state="offline"}) == 1',
        0,
        Severity.CRITICAL,
        "Container {{ $labels.container }} of {{ $labels.host }} stays offline until its data are"
        " repaired.",
    ),
    Alert(
        "SegstoreContainerNotOnline",
        'max by (job, host, container) (segstore_container_state{state=~"starting|failed"}) == 1',
        120,
        Severity.CRITICAL,
        "Container {{ $labels.container }} of {{ $labels.host }} does not come online.",
    ),
    # ---- Tier 2 ----------------------------------------------------------------------------------
    Alert(
        "SegstoreTier2Failing",
        "sum by (job, host, call, result) (rate(segstore_tier2_seconds_count"
        f'{{result!~"{"|".join(EXPECTED_RESULTS)}"}}[5m])) > 0',
        120,
        Severity.CRITICAL,
        "Calls of tier 2 by {{ $labels.host }} fail: {{ $labels.call }} with {{ $labels.result }}.",
    ),
    Alert(
        "SegstoreTier2Slow",
        _quantile("segstore_tier2_seconds", "job, host, call", '{result="ok"}') + " > 5",
        600,
        Severity.WARNING,
        "One in 100 calls of tier 2 ({{ $labels.call }}) by {{ $labels.host }} takes"
        " {{ $value | humanizeDuration }} or more.",
    ),
    Alert(
        "SegstoreTier2Behind",
        "sum by (job, host) (segstore_unflushed_bytes)"
        ' > 0.4 * max by (job, host) (segstore_cache_bytes{kind="capacity"})',
        300,
        Severity.WARNING,
        "{{ $value | humanize1024 }}B of {{ $labels.host }} are not in tier 2 yet; writers will be"
        " slowed down.",
    ),
    # ---- Writers and requests --------------------------------------------------------------------
    Alert(
        "SegstoreWritersStopped",
        "max by (job, host, container, reason) (segstore_throttle_seconds) == Inf",
        60,
        Severity.CRITICAL,
        "Container {{ $labels.container }} of {{ $labels.host }} accepts no events:"
        " {{ $labels.reason }}.",
    ),
    Alert(
        "SegstoreWritersThrottled",
        "max by (job, host, container, reason) (segstore_throttle_seconds) > 0",
        300,
        Severity.WARNING,
        "Container {{ $labels.container }} of {{ $labels.host }} slows writers down:"
        " {{ $labels.reason }}.",
    ),
    Alert(
        "SegstoreRequestsWait",
        "max by (job, host) (segstore_delay_reasons) > 0",
        60,
        Severity.CRITICAL,
        "Requests to {{ $labels.host }} wait, for {{ $value }} reasons.",
    ),
    Alert(
        "SegstoreAppendsSlow",
        _quantile("segstore_append_seconds", "job, host") + " > 1",
        600,
        Severity.WARNING,
        "One in 100 appends to {{ $labels.host }} takes {{ $value | humanizeDuration }} or more.",
    ),
    Alert(
        "SegstoreRefusalsMany",
        "sum by (job, host, reason) (rate(segstore_refusals_total"
        f'{{reason!~"{"|".join(EVERYDAY_REFUSALS)}"}}[5m])) > 1',
        300,
        Severity.WARNING,
        "{{ $labels.host }} refuses {{ $value | humanize }} requests a second:"
        " {{ $labels.reason }}.",
    ),
    Alert(
        "SegstoreRpcsFail",
        "sum by (job, host, method, code) (rate(segstore_rpc_seconds_count"
        '{code=~"INTERNAL|UNAVAILABLE|UNKNOWN|RESOURCE_EXHAUSTED|DATA_LOSS"}[5m])) > 0.1',
        300,
        Severity.WARNING,
        "{{ $value | humanize }} calls of {{ $labels.method }} a second fail at controller"
        " {{ $labels.host }} with {{ $labels.code }}.",
    ),
    # ---- Disks -----------------------------------------------------------------------------------
    Alert("SegstoreDisk80Percent", f"{_DISK} > 0.8", 300, Severity.INFO, f"{_DISK_SENTENCE}."),
    Alert("SegstoreDisk90Percent", f"{_DISK} > 0.9", 300, Severity.WARNING, f"{_DISK_SENTENCE}."),
    Alert(
        "SegstoreDisk95Percent",
        f"{_DISK} > 0.95",
        60,
        Severity.CRITICAL,
        f"{_DISK_SENTENCE}: writers will wait when it is full.",
    ),
    Alert(
        "SegstoreDiskFullSoon",
        "min by (job, host, path)"
        ' (predict_linear(segstore_disk_bytes{kind="free"}[1h], 4 * 3600)) < 0'
        f" and {_DISK} > 0.5",
        600,
        Severity.WARNING,
        "The disk of {{ $labels.path }} is full within 4 hours, if it fills as in the last one.",
    ),
    Alert(
        "SegstoreJournalSlow",
        _quantile("segstore_journal_sync_seconds", "job, host") + " > 0.5",
        600,
        Severity.WARNING,
        "One in 100 syncs of the journal of {{ $labels.host }} takes"
        " {{ $value | humanizeDuration }} or more.",
    ),
    # ---- Certificates ----------------------------------------------------------------------------
    Alert(
        "SegstoreCertificateEnds",
        f"{_CERTIFICATE} < 14 * 86400",
        300,
        Severity.WARNING,
        f"{_CERTIFICATE_SENTENCE}.",
    ),
    Alert(
        "SegstoreCertificateEndsSoon",
        f"{_CERTIFICATE} < 2 * 86400",
        60,
        Severity.CRITICAL,
        f"{_CERTIFICATE_SENTENCE}: then no client connects.",
    ),
    # ---- Processes -------------------------------------------------------------------------------
    Alert(
        "SegstoreLoopLate",
        _quantile("segstore_loop_lag_seconds", "job, component, host") + " > 0.5",
        600,
        Severity.WARNING,
        "The {{ $labels.component }} {{ $labels.host }} runs tasks"
        " {{ $value | humanizeDuration }} late.",
    ),
    Alert(
        "SegstoreOpenFilesNearMax",
        "max by (job, component, host)"
        " (segstore_process_open_files / segstore_process_open_files_max) > 0.8",
        300,
        Severity.WARNING,
        "The {{ $labels.component }} {{ $labels.host }} has {{ $value | humanizePercentage }} of"
        " the files open that it may.",
    ),
    Alert(
        "SegstoreConnectionsNearMax",
        "max by (job, host) (segstore_connections / segstore_connections_max) > 0.8",
        300,
        Severity.WARNING,
        "{{ $labels.host }} has {{ $value | humanizePercentage }} of the connections that it"
        " accepts.",
    ),
)
"""All alerts, in the order of the runbook."""


def render_rules(
    alerts: Iterable[Alert] = ALERTS,
    *,
    job: str = JOB,
    runbook: str = RUNBOOK,
    time_scale: float = 1.0,
) -> str:
    """Return the file of rules that Prometheus reads. ``time_scale`` multiplies the times for which
    expressions have to be true, and those over which they look."""
    return "".join(_rule_lines(alerts, job, runbook, time_scale))


def _rule_lines(
    alerts: Iterable[Alert], job: str, runbook: str, time_scale: float
) -> Iterator[str]:
    yield "groups:\n  - name: segstore\n    rules:\n"
    for alert in alerts:
        hold = round(alert.hold_seconds * time_scale)
        yield f"      - alert: {alert.name}\n"
        yield f"        expr: {_quote(expression_of(alert, job=job, time_scale=time_scale))}\n"
        yield f"        for: {hold}s\n"
        yield f"        labels:\n          severity: {alert.severity}\n"
        yield f"        annotations:\n          summary: {_quote(alert.sentence)}\n"
        yield f"          runbook_url: {_quote(f'{runbook}#{alert.anchor}')}\n"


def expression_of(alert: Alert, *, job: str = JOB, time_scale: float = 1.0) -> str:
    """Return an alert's expression, for the job of that name in the scrape configuration.

    ``time_scale`` multiplies the times over which it looks.
    """

    def scale(found: re.Match[str]) -> str:
        if time_scale == 1:
            return found[0]
        return f"[{max(1, round(int(found[1]) * _SECONDS[found[2]] * time_scale))}s]"

    text = alert.expression.replace(f'job="{_JOB}"', f'job="{job}"')
    return _DURATION.sub(scale, text)


def _quote(text: str) -> str:
    """Return a text as a scalar of YAML."""
    return "'" + text.replace("'", "''") + "'"
