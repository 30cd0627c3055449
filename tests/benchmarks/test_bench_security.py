"""The benchmark of users, tokens and TLS measures its rows."""

import pytest
from benchmarks.bench_security import CALL, MEMORY, OPENED, SMALL, measure

pytestmark = pytest.mark.proof


@pytest.mark.timeout(300)  # two servers
def test_the_small_size_gives_every_row() -> None:
    rows = measure(SMALL, rounds=2)
    assert [row.metric for row in rows] == [CALL, OPENED, MEMORY]
    call, opened, _ = rows
    assert call.ratio is not None
    assert call.ratio > 0
    assert len(call.ours_rounds) == 2
    assert opened.ours is not None
    assert opened.ours > 0
