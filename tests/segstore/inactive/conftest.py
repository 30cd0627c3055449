"""Tiers for containers whose segments become inactive."""

from __future__ import annotations

import pytest

from segstore.testing.evicting_tiers import EvictingTiers


@pytest.fixture
def tiers() -> EvictingTiers:
    return EvictingTiers()
