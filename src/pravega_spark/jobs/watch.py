"""Reads the progress of a job's running stages from Spark.

Owns: the counts of rows and tasks of running stages. Spark's own progress bar shows the same.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Running:
    """The sums of the counts of all stages that run now."""

    rows: int = 0
    bytes_read: int = 0
    tasks_done: int = 0
    tasks: int = 0

    @property
    def share(self) -> float:
        """Return the part of the tasks that has ended, from 0 to 1."""
        return self.tasks_done / self.tasks if self.tasks else 0.0


def look_at_stages(spark: SparkSession) -> Running:
    """Return what the running stages of a session have done; nothing for a remote session.

    Tasks report their rows with the heartbeats of executors.
    """
    # A stage, or the session, may end while it is asked about.
    with suppress(Py4JError, AttributeError, PySparkException):
        stages: Any = spark.sparkContext._jsc.sc().statusStore().activeStages()
        found = [stages.apply(index) for index in range(stages.size())]
        return Running(
            sum(each.inputRecords() for each in found),
            sum(each.inputBytes() for each in found),
            sum(each.numCompleteTasks() for each in found),
            sum(each.numTasks() for each in found),
        )
    return Running()
