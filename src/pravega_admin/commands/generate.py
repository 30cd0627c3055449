"""``segstore generate``: files for programs that watch a store.

Owns: the arguments of these verbs. They talk to no server.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import print_json
from pravega_metrics.alerts import JOB, RUNBOOK, render_rules

app = Verbs(help="Print files for Grafana and Prometheus.")


@app.command("grafana-dashboard")
def grafana_dashboard() -> None:
    """Print a dashboard that Grafana imports."""
    from pravega_metrics.dashboard import make_dashboard

    print_json(make_dashboard())


@app.command("prometheus-alerts")
def prometheus_alerts(
    job: Annotated[
        str,
        typer.Option(
            "--job", metavar="NAME", help="The job that scrapes the controllers, as job_name says."
        ),
    ] = JOB,
    runbook: Annotated[
        str,
        typer.Option("--runbook", metavar="URL", help="Where the runbook is; alerts link to it."),
    ] = RUNBOOK,
    time_scale: Annotated[
        float,
        typer.Option(
            "--time-scale",
            min=0.001,
            help="Multiply the times that alerts wait and look back; below 1 they come earlier.",
        ),
    ] = 1.0,
) -> None:
    """Print rules by which Prometheus reports what is wrong with a store."""
    print(render_rules(job=job, runbook=runbook, time_scale=time_scale), end="")
