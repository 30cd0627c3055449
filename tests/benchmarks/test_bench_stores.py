import pytest
from benchmarks.bench_stores import main

pytestmark = pytest.mark.proof


@pytest.mark.timeout(300)
def test_the_small_size_writes_to_one_store_and_to_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds=1", "--blocks=1000"]) == 0
    _, one, two = capsys.readouterr().out.splitlines()
    for stores, line in (("1", one), ("2", two)):
        count, blocks_per_second, cpu = line.split()
        assert count == stores
        assert float(blocks_per_second.replace(",", "")) > 0
        assert float(cpu) > 0
