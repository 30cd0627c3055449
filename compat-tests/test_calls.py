"""The proxy that notes calls, in front of a real controller."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from compat_harness.calls import CallCounter
from compat_harness.server import Server

from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import PravegaError


def test_calls_are_noted_with_the_test_they_belong_to(tmp_path: Path) -> None:
    with Server(tmp_path) as server, CallCounter(f"127.0.0.1:{server.controller_port}") as counter:
        uri = counter.listen("suite")
        other = counter.listen("other")
        first = time.time()
        with ControllerClient(uri) as client:
            client.create_scope("scope")
            second = time.time()
            list(client.list_scopes())
        with ControllerClient(other) as client:
            list(client.list_scopes())
        created, listed = counter.calls_of("suite", [first, second])
        assert created == ("createScope",)
        assert listed == ("listScopes",)
        assert counter.calls_of("other", [first]) == [("listScopes",)]


def test_a_refusal_passes_and_is_not_counted(tmp_path: Path) -> None:
    with Server(tmp_path) as server, CallCounter(f"127.0.0.1:{server.controller_port}") as counter:
        uri = counter.listen("suite")
        start = time.time()
        with ControllerClient(uri) as client, pytest.raises(PravegaError):
            client.current_segments("no-scope", "no-stream")
        assert counter.calls_of("suite", [start]) == [()]
