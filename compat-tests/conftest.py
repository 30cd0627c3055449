"""Fixtures of the compatibility tests: the server under test and the official clients."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for directory in (HERE.parent, HERE):  # the benchmarks know Maven and how to start the original
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))

from compat_harness.java import CLIENT_VERSIONS, JavaClient, JavaError  # noqa: E402
from compat_harness.server import TARGET_VARIABLE, Server  # noqa: E402


@pytest.fixture(scope="session")
def controller_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The controller of the server under test: one of our own for the whole session, or another's.

    The environment variable SEGSTORE_COMPAT_TARGET names a server that runs already.
    """
    running = os.environ.get(TARGET_VARIABLE)
    if running:
        yield running
        return
    with Server(tmp_path_factory.mktemp("server")) as server:
        yield server.controller_uri


@pytest.fixture(scope="session", params=CLIENT_VERSIONS)
def java_client(request: pytest.FixtureRequest) -> JavaClient:
    """The Java suites, compiled with one version of the official client."""
    return build(request.param)


def build(version: str) -> JavaClient:
    """The suites compiled with that client; the test fails with one line where that cannot be."""
    try:
        return JavaClient.build(version)
    except JavaError as error:
        reason = str(error)
    pytest.fail(reason, pytrace=False)
