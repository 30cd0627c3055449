"""A pytest plugin that writes each failed test to a file, as a line of JSON.

``--failures FILE`` names the file. Under pytest-xdist the workers say what kind of failure it was,
and the process that collects their reports writes.

A failure is *final* when a second try must not hide it:

- a loss, a duplicate or a wrong order of acknowledged data (an error with the attribute
  ``no_second_try``),
- any failure of a test with the marker ``no_second_try``,
- a crash of the interpreter, and a module that cannot be collected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

FINAL_ATTRIBUTE = "is_final_failure"
TEST_ATTRIBUTE = "test_without_group"
CRASH = "worker '"
"""The beginning of what pytest-xdist says of a worker that ended in the middle of a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("gate").addoption(
        "--failures", type=Path, help="write a line of JSON for each failed test to this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--failures")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureFile(path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Say in the report whether the failure is final: attributes travel from workers."""
    report = yield
    if report.failed and call.excinfo is not None:
        marked = item.get_closest_marker("no_second_try") is not None
        setattr(report, FINAL_ATTRIBUTE, marked or is_broken_promise(call.excinfo.value))
        setattr(report, TEST_ATTRIBUTE, without_group(item))
    return report


def without_group(item: pytest.Item) -> str:
    """Return a test's id as pytest takes it: pytest-xdist appends the group of the test."""
    group = item.get_closest_marker("xdist_group")
    if group is None:
        return item.nodeid
    name = group.kwargs.get("name") or group.args[0]
    return item.nodeid.removesuffix(f"@{name}")


def is_broken_promise(error: BaseException) -> bool:
    """Return whether this error, or one in its group, says that acknowledged data are wrong."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_broken_promise(each) for each in error.exceptions)
    return getattr(error, "no_second_try", False)


class FailureFile:
    """Appends the failures of a run to a file, each when it is reported."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        text = str(report.longrepr)
        line = {
            "test": getattr(report, TEST_ATTRIBUTE, report.nodeid),
            "when": report.when,
            "is_final": getattr(report, FINAL_ATTRIBUTE, False) or text.startswith(CRASH),
            "message": text.strip().rpartition("\n")[2][-400:],
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            with self._path.open("a") as file:
                line = {"test": report.nodeid, "when": "collect", "is_final": True, "message": ""}
                file.write(json.dumps(line) + "\n")
