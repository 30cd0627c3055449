from pathlib import Path

import pytest
from benchmarks.bench_tables import LAYOUTS, METRICS, measure

pytestmark = pytest.mark.proof


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_small_run_measures_everything(layout: str, tmp_path: Path) -> None:
    found = await measure(tmp_path, key_length=LAYOUTS[layout], key_count=500)
    assert found.keys() == METRICS.keys()
    assert all(found[name] > 0 for name in found if name != "grown")
