import json
import re
import shutil
from pathlib import Path

import pytest
from benchmarks.bench_budget import SMALL_CASES, call_counts, main, measure, stage_of, stage_shares

pytestmark = pytest.mark.proof

KERNEL = "[kernel.kallsyms]"
FAST = "/x/_fast/wire/appends.cpython-311-x86_64-linux-gnu.so"
PYTHON = "/usr/lib/libpython3.11.so.1.0"

STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.600000          10     60000       200 futex
 40.00    0.400000          10     40000           pwritev2
------ ----------- ----------- --------- --------- ----------------
100.00    1.000000          10    100000       200 total
"""

PERF = f"""\
python
\tffff01 rep_movs_alternative+0x1 ({KERNEL})
\tffff02 do_readv+0x64 ({KERNEL})
\tffff03 do_syscall_64+0x71 ({KERNEL})
\t000004 [unknown] ([unknown])

python
\t000001 _PyEval_EvalFrameDefault+0x10 ({PYTHON})
\t000002 [unknown] ([unknown])

"""


@pytest.mark.timeout(120)
def test_a_small_case_is_measured_whole(tmp_path: Path) -> None:
    spent = measure(SMALL_CASES[0], seconds=0.5, directory=tmp_path / "store")
    assert spent.load.blocks == len(spent.load.latencies_ms) == 100
    assert 0 < spent.load.percentile_ms(50) <= spent.load.percentile_ms(95)
    assert spent.cpu_us > 0
    if shutil.which("perf"):
        assert sum(spent.stages_us.values()) == pytest.approx(spent.cpu_us)
        assert spent.copies is not None
    if shutil.which("strace"):
        assert spent.calls["epoll_wait"] > 0


@pytest.mark.timeout(120)
def test_the_command_prints_stages_and_writes_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JSON", str(tmp_path / "rows.json"))
    assert main(["--small"]) == 0
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["ours"] > 0
    assert row["reach"] == 1.0
    printed = capsys.readouterr().out
    assert re.search(r"^\| CPU, us \| [\d.,]+ \|$", printed, re.MULTILINE)


@pytest.mark.parametrize(
    ("stack", "stage"),
    [
        ([("x", KERNEL), ("do_pwritev", KERNEL), ("do_syscall_64", KERNEL)], "writing to disk"),
        ([("__x64_sys_futex", KERNEL), ("do_syscall_64", KERNEL)], "waiting"),
        ([("__x64_sys_openat", KERNEL), ("do_syscall_64", KERNEL)], "other system calls"),
        ([("handle_softirqs", KERNEL), ("main", PYTHON)], "kernel, on its own"),
        ([("scan", FAST), ("main", PYTHON)], "_fast.wire.appends"),
        ([("__memmove_avx", "/lib/libc.so.6")], "copying in memory"),
        ([("crc32", "/lib/libz.so")], "libraries"),
        ([("PyObject_Call", PYTHON)], "Python"),
    ],
)
def test_a_sample_belongs_to_a_stage(stack: list[tuple[str, str]], stage: str) -> None:
    assert stage_of(stack) == stage


def test_samples_become_shares() -> None:
    shares, copying = stage_shares(PERF.splitlines())
    assert shares == {"receiving": 0.5, "Python": 0.5}
    assert copying == 0.5
    assert stage_shares([]) == ({}, 0.0)


def test_calls_are_counted() -> None:
    assert call_counts(STRACE) == {"futex": 60_000, "pwritev2": 40_000}
