"""Settings of measuring that make no sense are refused when the store is configured."""

from __future__ import annotations

from typing import Any

import pytest

from segstore.process.config import AutoScaleSettings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sample_seconds": 0.0}, "sample_seconds"),
        ({"window_seconds": (0.0, 1.0, 2.0, 3.0)}, "window_seconds"),
        ({"window_seconds": (3.0, 1.0, 2.0, 4.0)}, "ascending"),
        ({"mute_seconds": -1.0}, "mute_seconds"),
    ],
)
def test_senseless_times_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AutoScaleSettings(**settings)
