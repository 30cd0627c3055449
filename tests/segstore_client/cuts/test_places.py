"""Places of a stream: the forms in which users write them."""

from __future__ import annotations

import time

import pytest

from pravega_wire.stream_cut_text import encode_cut_text
from segstore_client.cuts.places import Place, parse_place
from segstore_client.errors import UsageError
from segstore_client.positions import Position


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("head", Place(end=Position.HEAD)),
        (" tail ", Place(end=Position.TAIL)),
        ("1970-01-01T00:00:02", Place(time_ms=2_000)),
        ("1970-01-01", Place(time_ms=0)),
        ("1700000000000", Place(time_ms=1_700_000_000_000)),
        ("0:4096", Place(cut={0: 4096})),
        ("0:-1,4294967297:0", Place(cut={0: -1, 4294967297: 0})),
        (encode_cut_text("a/b", {0: 7}), Place(cut={0: 7}, stream="a/b")),
    ],
)
def test_a_place_has_many_forms(text: str, place: Place) -> None:
    assert parse_place("--to", text) == place


def test_a_place_may_be_so_long_ago() -> None:
    found = parse_place("--to", "-15m").time_ms
    assert found is not None
    assert 0 <= time.time() * 1000 - 15 * 60_000 - found < 60_000


@pytest.mark.parametrize("text", ["", "end", "0:", "0:1,", "0:x", "2026-13-01", "-15x", "-1.2.3s"])
def test_other_texts_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageError):
        parse_place("--to", text)
