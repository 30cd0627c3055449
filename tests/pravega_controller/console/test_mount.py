"""Tests of the console's place on the HTTP port: what it costs while nobody opens it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, trio
from pravega_controller.console.mount import console_routes
from pravega_controller.config import ControllerConfig
from pravega_controller.http.application import make_application
from pravega_controller.http.calls import Calls
from pravega_controller.http.health import Health
from support.http_controllers import send_to_application
calls, health = Calls(None, None), Health(None, ControllerConfig())
application = make_application(calls, health, console_routes(calls, health, ()))
LAZY = ("jinja2", "pravega_controller.console.application")
for path in ("/live", "/console/none"):
    status, _ = trio.run(send_to_application, application, "GET", path, b"")
    print(status, [name for name in LAZY if name in sys.modules])
"""


@pytest.mark.processes
def test_until_somebody_opens_it_nothing_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.splitlines() == [
        "200 []",
        "404 ['jinja2', 'pravega_controller.console.application']",
    ]
