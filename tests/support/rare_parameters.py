"""Parameters of which a change must pass the usual ones, and ``make proof`` runs all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def mark_rare(values: Iterable[object], usual_count: int) -> list[object]:
    """Return parameters: the first ``usual_count`` values, and the others marked ``proof``."""
    usual = list(values)
    rare = [pytest.param(value, marks=pytest.mark.proof) for value in usual[usual_count:]]
    return [*usual[:usual_count], *rare]
