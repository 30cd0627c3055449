"""Seeds of which a change must pass some, and ``make proof`` runs all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def share_seeds(seeds: Sequence[int], usual_count: int) -> list[object]:
    """Return parameters: the first ``usual_count`` seeds, and the others marked ``proof``."""
    rare = [pytest.param(seed, marks=pytest.mark.proof) for seed in seeds[usual_count:]]
    return [*seeds[:usual_count], *rare]
