"""Tiers for containers whose segments become inactive."""

from __future__ import annotations

import pytest

from support.faults.crashing_tiers import CrashingTiers


@pytest.fixture
def tiers() -> CrashingTiers:
    return CrashingTiers()
