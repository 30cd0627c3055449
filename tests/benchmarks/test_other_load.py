import os

import pytest
from benchmarks.machine import busy_seconds
from benchmarks.other_load import spinning


def test_processes_spin_as_long_as_the_block() -> None:
    before = busy_seconds()
    with spinning(2) as ids:
        assert len(ids) == 2
        while busy_seconds() < before + 0.1:
            for process_id in ids:
                os.kill(process_id, 0)
    for process_id in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)
