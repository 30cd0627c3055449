"""The benchmark of the Python clients runs: every row has numbers of all clients."""

from pathlib import Path

import pytest
from benchmarks.bench_python import CPU, JAVA, OFFICIAL, RATE, ROWS, SMALL_SHARE, run

pytestmark = [pytest.mark.proof, pytest.mark.compat, pytest.mark.timeout(600)]

pytest.importorskip(
    "pravega_client", reason="there is no wheel of the official Python client for this Python"
)


def test_every_row_is_measured(tmp_path: Path) -> None:
    found, remarks = run(list(ROWS), tmp_path, rounds=2, share=SMALL_SHARE)
    assert remarks == []
    wanted = {(name, peer) for name, row in ROWS.items() for peer in row.reaches}
    assert {(each.row, each.peer_name) for each in found if each.metric == RATE} == wanted
    assert all(each.ours and each.peer and each.ratio for each in found)
    assert len([each for each in found if each.metric == CPU]) == len(ROWS)
    assert {each.peer_name for each in found} == {OFFICIAL, JAVA}
