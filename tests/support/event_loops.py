"""The event loops on which the client has to run.

Owns: their names, and the type of the fixture ``run_client``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.rare_parameters import mark_rare

BACKENDS = ("trio", "asyncio")

RunClient = Callable[..., Awaitable[Any]]
"""Runs an async function, with its arguments, on an event loop of its own; returns the result."""

ON_THE_USUAL_LOOP = pytest.mark.parametrize(
    "run_client", mark_rare(("asyncio", "trio"), 1), indirect=True
)
"""Marks long tests whose ways through the event loop other tests take on both."""
