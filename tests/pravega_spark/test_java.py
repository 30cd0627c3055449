"""Java is looked for as Spark looks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.jobs.java import find_java_problem

pytestmark = pytest.mark.processes


def make_java(home: Path, version: str) -> Path:
    """Make a program that tells a version as Java does, on stderr."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize("version", ["17.0.10", "21", "25-ea"])
def test_a_java_that_is_new_enough_is_no_problem(tmp_path: Path, version: str) -> None:
    make_java(tmp_path, version)
    assert find_java_problem({"JAVA_HOME": str(tmp_path)}) is None
    assert find_java_problem({"PATH": str(tmp_path / "bin")}) is None


@pytest.mark.parametrize(("version", "told"), [("1.8.0_392", "Java 8"), ("11.0.2", "Java 11")])
def test_an_old_java_is_named(tmp_path: Path, version: str, told: str) -> None:
    java = make_java(tmp_path, version)
    problem = find_java_problem({"JAVA_HOME": str(tmp_path)})
    assert problem is not None
    assert problem.startswith(f"the data pipeline needs Java 17 or newer, and {java} is {told}: ")


def test_a_missing_java_is_told_with_the_remedy(tmp_path: Path) -> None:
    problem = find_java_problem({"PATH": str(tmp_path)})
    assert problem == (
        "the data pipeline needs Java 17 or newer, and there is none: install it (on Debian:"
        " apt-get install openjdk-17-jre-headless), or let JAVA_HOME name one"
    )
    assert f"JAVA_HOME names {tmp_path}" in (find_java_problem({"JAVA_HOME": str(tmp_path)}) or "")
