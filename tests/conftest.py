"""Configures Hypothesis, and marks the tests that ``make unit`` leaves to ``make test``.

``--hypothesis-profile`` chooses how many examples Hypothesis tries.

``make unit`` runs the tests that a developer waits for: all but the simulations in ``sim/``, and
those that start a process. The latter have the marker ``processes``; a test without it fails when
it starts one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
for folder in (str(TESTS), str(TESTS.parent)):
    # ``support``; ``foreign_servers`` and ``benchmarks``: none of them is installed.
    if folder not in sys.path:
        sys.path.append(folder)

pytest_plugins = (
    "gate.deadlines",
    "gate.folders",
    "gate.logs",
    "gate.outcomes",
    "gate.timeouts",
)

# The same examples each time, so that no change fails by chance: ``make proof`` draws others. An
# example may take long on a machine that is busy with other tests.
settings.register_profile("usual", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("random", max_examples=200, deadline=None)
# Where everything is several times slower, the same paths by fewer examples.
settings.register_profile("sanitize", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("usual")

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""Names of the audit events that Python raises when it starts a process."""
ALLOWED = {"git"}
"""Programs that any test may run: the rules of the repository ask for the list of its files."""

_without_processes: str | None = None
"""The id of the test that runs now, if it may not start a process."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Keep the garbage collector from the tests while they are collected, and from then on.

    They and all modules are half a million objects, and stay until the end; the syntax trees in
    which pytest rewrites the assertions are several millions. The simulations collect before each
    life.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter take its modules apart in the usual order at its end."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _without_processes
    if item.get_closest_marker("processes") is None:
        _without_processes = item.nodeid
    try:
        return (yield)
    finally:
        _without_processes = None


def refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a test that starts a process and does not say so."""
    if event in STARTS and _without_processes is not None:
        if arguments and str(arguments[0]) in ALLOWED:
            return
        pytest.fail(f"{_without_processes} starts a process: mark it with pytest.mark.processes")


sys.addaudithook(refuse_processes)
