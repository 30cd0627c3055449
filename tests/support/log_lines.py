"""Lines of the log that a test has captured.

Owns: ``find_warnings``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ABOUT_THE_MACHINE = ("a disk is filling up",)
"""Events that depend on the machine on which the tests run, and not on the test."""


def find_warnings(logs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the events of warnings and errors, without those about this machine."""
    return [
        str(line["event"])
        for line in logs
        if line["log_level"] in ("warning", "error") and line["event"] not in ABOUT_THE_MACHINE
    ]
