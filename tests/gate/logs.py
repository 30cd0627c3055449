"""A pytest plugin that shows the last lines of servers' logs beside a failure.

A test that ends by its time limit says where it waited. What it waited for is in the logs of the
processes that it started: all files ``*.log`` below pytest's temporary directory that were written
while the test ran.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LOGS_MAX = 6
LINES_MAX = 25
LINE_LENGTH_MAX = 500

_STARTED = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when the test began, by the clock that stamps files."""
    item.stash[_STARTED] = time.time()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add a section for each log to the report of a failure."""
    report = yield
    factory = getattr(item.config, "_tmp_path_factory", None)
    if report.failed and call.excinfo is not None and factory is not None:
        since = item.stash.get(_STARTED, 0.0)
        for path in find_logs(factory.getbasetemp(), since):
            report.sections.append((f"end of {path}", read_end(path)))
    return report


def find_logs(directory: Path, since: float) -> list[Path]:
    """Return the logs written since that time that have text in them, the newest first."""
    found = []
    for path in directory.rglob("*.log"):
        try:
            stat = path.stat()
        except OSError:
            continue  # it went meanwhile, with its server's directory
        if stat.st_mtime >= since and path.is_file() and is_text(path):
            found.append((stat.st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)[:LOGS_MAX]]


def is_text(path: Path) -> bool:
    """Return whether a file begins as a text: other servers' data are called logs, too."""
    with path.open("rb") as file:
        begin = file.read(LINE_LENGTH_MAX)
    return bool(begin) and b"\0" not in begin


def read_end(path: Path) -> str:
    """Return the last lines of a log."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - LINES_MAX * LINE_LENGTH_MAX))
        lines = file.read().decode(errors="replace").splitlines()[-LINES_MAX:]
    return "\n".join(line[:LINE_LENGTH_MAX] for line in lines)
