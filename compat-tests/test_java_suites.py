"""Every suite of the official Java client, by name, with each client version."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from compat_harness.java import NEWEST, JavaError, TestLine, suites, versions_of
from compat_harness.results import Outcome, Result, ServerName, append_results
from compat_harness.server import TARGET_VARIABLE
from compat_harness.suite_groups import KILLS, ONLY_OURS, SuiteRuns, group_of

NOTE_MAX = 200
LONGEST = ("AutoScaleTest", "KeyValueTableKillTest", "KillTest")
"""Suites that wait for minutes: loads that must last, and many kills."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate a test for each suite of each version."""
    if "suite" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full")
        pairs = [
            pytest.param(version, suite, marks=marks_of(version, suite))
            for version in versions_of(full=full)
            for suite in suites(version)
            if full or version == NEWEST or group_of(suite) is not KILLS
        ]
        metafunc.parametrize(("version", "suite"), pairs, ids=lambda part: part)


def marks_of(version: str, suite: str) -> Sequence[pytest.MarkDecorator]:
    """Return the marker of what ``make test`` leaves to ``make proof``, if it does."""
    return () if version == NEWEST and suite not in LONGEST else (pytest.mark.proof,)


@pytest.mark.compat
@pytest.mark.matrix
@pytest.mark.timeout(1200)
def test_java_suite(
    version: str, suite: str, suite_runs: SuiteRuns, request: pytest.FixtureRequest
) -> None:
    if skipped_suite(request.config, suite):
        pytest.skip(ONLY_OURS[suite])
    try:
        run = suite_runs.run_of(version, suite, wanted_suites(request.session, version))
        tests = run.wait_for(suite)
    except JavaError as error:
        reason = str(error)
        pytest.fail(reason, pytrace=False)
    for test in tests:
        print(f"{test.seconds:6.1f} s  {test.result:7}  {test.test}")
    path = request.config.getoption("--results")
    if path is not None:
        server = ServerName(request.config.getoption("--server"))
        calls = suite_runs.calls_of(version, suite, tests)
        results = [
            result_of(test, version, server, reached)
            for test, reached in zip(tests, calls, strict=True)
        ]
        append_results(path, results)
    failed = [test for test in tests if test.result == Outcome.FAILED and not test.race]
    end = run.ends[suite]
    if failed or end.end != Outcome.PASSED or not tests:
        traces = "\n".join([f"{test.test}\n{test.trace}" for test in failed] + [end.trace])
        output = run.output()[-20_000:]
        pytest.fail(f"{suite} failed with client {version}:\n{traces}\n{output}", pytrace=False)


def wanted_suites(session: pytest.Session, version: str) -> Sequence[str]:
    """Return the suites that this session runs with a version."""
    parameters = [
        item.callspec.params
        for item in session.items
        if isinstance(item, pytest.Function) and "suite_runs" in item.fixturenames
    ]
    wanted = [each["suite"] for each in parameters if each["version"] == version]
    return [suite for suite in wanted if not skipped_suite(session.config, suite)]


def skipped_suite(config: pytest.Config, suite: str) -> bool:
    """Return whether the server under test cannot be what the suite needs."""
    foreign = config.getoption("--server") == ServerName.ORIGINAL or TARGET_VARIABLE in os.environ
    return foreign and suite in ONLY_OURS


def result_of(test: TestLine, version: str, server: ServerName, calls: tuple[str, ...]) -> Result:
    """Return the line of the results file for a test of the JVM."""
    return Result(
        server=server,
        client="Java",
        version=version,
        api=test.api,
        suite=test.suite,
        test=test.test,
        result=Outcome(test.result),
        seconds=round(test.seconds, 1),
        race=test.race,
        note=test.note[:NOTE_MAX],
        calls=calls,
    )
