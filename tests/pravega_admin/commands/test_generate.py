"""``segstore generate`` prints what is declared, without a server."""

from __future__ import annotations

import json

import yaml
from typer.testing import CliRunner

from pravega_admin.errors import EXIT_USAGE
from pravega_admin.verbs import app
from pravega_metrics.alerts import render_rules
from pravega_metrics.dashboard import make_dashboard


def output_of(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["generate", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_dashboard_is_one_document_of_json() -> None:
    assert json.loads(output_of("grafana-dashboard")) == make_dashboard()


def test_rules_are_printed_for_the_job_and_the_runbook_of_the_options() -> None:
    assert output_of("prometheus-alerts") == render_rules()
    text = output_of("prometheus-alerts", "--job", "stores", "--runbook", "https://wiki/runbook")
    [group] = yaml.safe_load(text)["groups"]
    assert group["rules"][0]["expr"] == 'up{job="stores"} == 0'
    assert group["rules"][0]["annotations"]["runbook_url"].startswith("https://wiki/runbook#")


def test_a_scale_of_time_that_ends_all_waiting_is_refused() -> None:
    done = CliRunner().invoke(app, ["generate", "prometheus-alerts", "--time-scale", "0"])
    assert done.exit_code == EXIT_USAGE
