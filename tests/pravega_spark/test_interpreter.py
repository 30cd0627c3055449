"""Spark's Python workers run where this package is, unless told otherwise."""

from __future__ import annotations

import os
import sys

import pytest
from pyspark import SparkContext

from pravega_spark.interpreter import use_own_interpreter


class Context:
    """A session's context, as far as workers depend on it."""

    def __init__(self, python: str) -> None:
        self.pythonExec = python


@pytest.mark.parametrize(
    ("variable", "before", "after"),
    [
        (None, "python3", sys.executable),
        (None, "/somewhere/python", "/somewhere/python"),
        ("/elsewhere/python", "python3", "python3"),
    ],
)
def test_workers_use_our_interpreter_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, before: str, after: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", variable or "")
    if variable is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    context = Context(before)
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    use_own_interpreter()
    assert context.pythonExec == after
    assert os.environ["PYSPARK_PYTHON"] == (variable or sys.executable)
