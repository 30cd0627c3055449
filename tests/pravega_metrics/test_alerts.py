"""The alerts name what is declared, and their sections in the runbook."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest
import trio
import yaml

from pravega_controller.http.health import ANSWER_SECONDS_MAX
from pravega_metrics import alerts as module
from pravega_metrics.alerts import ALERTS, EVERYDAY_REFUSALS, EXPECTED_RESULTS, render_rules
from segstore import errors
from segstore.runtime.refused_files import describe_full
from support.expressions import find_undeclared, result_labels

RUNBOOK = Path(__file__).parents[2] / module.RUNBOOK


@pytest.mark.parametrize(
    "expression",
    [
        "rate(segstore_append_events[5m])",
        "rate(segstore_append_events_sum[5m])",
        "segstore_connections_total",
        "segstore_connection",
        'segstore_connections{container="1"}',
        "sum by (reason) (segstore_connections)",
        "histogram_quantile(0.5, sum by (le) (rate(segstore_append_seconds_count[5m])))",
    ],
)
def test_what_is_not_declared_is_found(expression: str) -> None:
    assert find_undeclared(expression)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_expressions_name_what_is_declared(alert: module.Alert) -> None:
    assert find_undeclared(alert.expression) == []


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_sentences_name_labels_that_the_result_has(alert: module.Alert) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", alert.sentence))
    assert named <= result_labels(alert.expression)
    # When a controller ends, another instance reports the stores.
    if not alert.expression.startswith("up"):
        assert "instance" not in result_labels(alert.expression)


def test_names_of_errors_are_those_of_classes() -> None:
    for name in {*EVERYDAY_REFUSALS, *EXPECTED_RESULTS} - {"ok", trio.Cancelled.__name__}:
        assert issubclass(getattr(errors, name), errors.SegmentStoreError)


def test_rules_are_what_prometheus_reads() -> None:
    [group] = yaml.safe_load(render_rules(job="other's", runbook="https://runbook/"))["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [alert.name for alert in ALERTS]
    for rule, alert in zip(group["rules"], ALERTS, strict=True):
        assert rule["for"] == f"{alert.hold_seconds}s"
        assert rule["labels"] == {"severity": alert.severity.value}
        assert rule["annotations"]["summary"] == alert.sentence
        assert rule["annotations"]["runbook_url"] == f"https://runbook/#{alert.name.lower()}"
    assert group["rules"][0]["expr"] == 'up{job="other\'s"} == 0'


def test_all_times_are_scaled_but_those_that_are_told() -> None:
    [group] = yaml.safe_load(render_rules(time_scale=0.1))["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    assert rules["SegstoreJournalSlow"]["for"] == "60s"
    assert "[30s]" in rules["SegstoreJournalSlow"]["expr"]
    assert "[360s], 4 * 3600" in rules["SegstoreDiskFullSoon"]["expr"]


def sections(*, reasons: bool) -> dict[str, str]:
    """Return the sections of alerts, or of reasons, by their headings."""
    of_alerts, _, of_reasons = RUNBOOK.read_text().partition("\n# Reasons\n")
    _, *found = re.split(r"^## (.+)$", of_reasons if reasons else of_alerts, flags=re.M)
    return dict(zip(found[::2], found[1::2], strict=True))


def test_every_alert_has_its_section() -> None:
    assert list(sections(reasons=False)) == [alert.name for alert in ALERTS]


@pytest.mark.parametrize("reasons", [False, True])
def test_sections_say_where_to_look_and_what_to_do(*, reasons: bool) -> None:
    for name, text in sections(reasons=reasons).items():
        assert re.search(r"^\$ ", text, re.M), f"{name} has no command"
        if not text.strip().startswith("As ["):
            for part in ("Means", "Look", "Do"):
                assert f"**{part}:**" in text, name


def test_links_of_the_runbook_lead_to_sections() -> None:
    text = RUNBOOK.read_text()
    anchors = {
        heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


async def test_every_reason_has_its_section(tmp_path: Path) -> None:
    headings = sections(reasons=True)
    told = [
        f"segment stores do not answer within {ANSWER_SECONDS_MAX:g} s",
        "gave up after 30 s: the connection to segment store store-1:12345 broke",
        describe_full(OSError(errno.ENOSPC, ""), tmp_path),
        "the disk of D does not answer",
        "the disk of D is full: it has no inode left for another file",
        describe_full(OSError(errno.EDQUOT, ""), tmp_path),
        "container is offline (1): the journal is damaged",
        f"tier 2 in {tmp_path} cannot write chunk: Read-only file system",
    ]
    found = {
        heading
        for heading in headings
        for reason in told
        if heading in reason.replace(str(tmp_path), "D")
    }
    assert found == set(headings)
    assert all(
        any(heading in reason.replace(str(tmp_path), "D") for heading in headings)
        for reason in told
    )
