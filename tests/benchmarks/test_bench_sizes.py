import json

import pytest
import structlog
from benchmarks.bench_sizes import Size, main, measure

pytestmark = pytest.mark.proof


def test_the_small_size_counts_moves_as_the_balancer_promises() -> None:
    found = {each.about: each.value for each in measure(Size(100, 1_000, 10_000), sample=20)}
    assert found["all stores start: containers that move"] == 1_000
    assert found["all stores start: most that one store gets"] == 10
    assert found["one store fails: containers that move"] == 10
    assert found["it comes back: containers that move"] == 10
    assert found["a rack of 25 fails: containers that move"] == 250
    assert found["a rack of 25 fails: most that one store gets"] == 4
    assert found["segments in each container"] == 20
    assert 0 < found["share of what ZooKeeper takes for a node"] < 0.1
    assert found["metadata of all streams"] == 10_000 * found["metadata of a stream"]
    assert found["memory of a controller for a stream in use"] > 0


def test_rows_are_written_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    logged_before = structlog.get_config()
    main(["--stores=30", "--containers=60", "--streams=100", "--sample=20", "--json"])
    assert structlog.get_config() == logged_before
    rows = json.loads(capsys.readouterr().out)
    assert {"about", "value", "unit"} == set(rows[0])
