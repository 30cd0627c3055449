"""The findings of an inspection of a machine and its servers.

Owns: ``Finding``, and the order of severities.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: what was found, and how to mend it if it is bad."""

    check: str
    severity: Severity
    found: str
    mend: str = ""


def worst_of(findings: Iterable[Finding]) -> Severity:
    """Return the worst severity; ``OK`` without findings."""
    order = list(Severity)
    return max((each.severity for each in findings), key=order.index, default=Severity.OK)
