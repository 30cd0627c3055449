"""Reduces the errors of the data source to one sentence.

Owns: the form in which errors reach Spark. Spark prints an error with its traceback and its causes,
so that a sentence for the user would be lost between them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from segstore_client.errors import PravegaError

P = ParamSpec("P")
R = TypeVar("R")


def told_plainly(method: Callable[P, R]) -> Callable[P, R]:
    """Return the method such that its errors have no causes, and their sentence is on stderr, too.

    The sentence is there before Spark prints the traceback.
    """

    @wraps(method)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return method(*arguments, **options)
        except PravegaError as error:
            print(f"pravega: {error}", file=sys.stderr, flush=True)
            raise error.with_traceback(None) from None

    return call
