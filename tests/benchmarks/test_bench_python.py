"""The benchmark of the Python clients runs: every row has numbers of all clients."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.bench_python import CPU, JAVA, KAFKA, OFFICIAL, RATE, ROWS, SMALL_SHARE, run

pytestmark = [pytest.mark.proof, pytest.mark.compat, pytest.mark.timeout(600)]

pytest.importorskip(
    "pravega_client", reason="there is no wheel of the official Python client for this Python"
)


def test_every_row_is_measured(tmp_path: Path) -> None:
    # Kafka's client is installed by hand.
    without = () if find_spec("confluent_kafka") else (KAFKA,)
    found, remarks = run(list(ROWS), tmp_path, rounds=2, share=SMALL_SHARE, without=without)
    assert remarks == []
    wanted = {(name, peer) for name, row in ROWS.items() for peer in row.reaches}
    wanted = {each for each in wanted if each[1] not in without}
    assert {(each.row, each.peer_name) for each in found if each.metric == RATE} == wanted
    assert all(each.ours and each.peer and each.ratio for each in found)
    of_python = {each for each in wanted if each[1] != JAVA}
    assert len([each for each in found if each.metric == CPU]) == len(of_python)
    assert {each.peer_name for each in found} == {OFFICIAL, JAVA, KAFKA} - set(without)
