"""Makes Spark's Python workers use the interpreter that has this package.

Owns: the choice of the workers' Python interpreter. By itself, Spark takes the first in the PATH.
"""

from __future__ import annotations

import os
import sys

from pyspark import SparkContext

VARIABLE = "PYSPARK_PYTHON"
SPARKS_DEFAULT = "python3"


def use_own_interpreter() -> None:
    """Let workers use this interpreter, unless the user has named another.

    This also changes a session that exists already.
    """
    if VARIABLE in os.environ:
        return
    os.environ[VARIABLE] = sys.executable
    context = SparkContext._active_spark_context
    if context is not None and context.pythonExec == SPARKS_DEFAULT:
        context.pythonExec = sys.executable
