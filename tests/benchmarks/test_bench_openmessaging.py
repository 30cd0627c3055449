"""The parts of bench_openmessaging.py that need no built benchmark, which is on no registry."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.bench_openmessaging import (
    RATE,
    REPORTED,
    WORKLOAD,
    driver_file,
    find_class_path,
    main,
    read_report,
    run_benchmark,
    wait_for_report,
)
from benchmarks.streams.rows import KAFKA_FSYNC, OURS
from benchmarks.streams.servers import server

pytestmark = pytest.mark.proof


def test_the_class_path_is_that_of_the_benchmarks_own_script(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no built benchmark"):
        find_class_path(tmp_path)
    target = tmp_path / "benchmark-framework" / "target"
    (target / "classes").mkdir(parents=True)
    (target / "classpath.txt").write_text("/a.jar:/b.jar\n")
    assert find_class_path(tmp_path) == f"{target / 'classes'}:/a.jar:/b.jar"
    (tmp_path / "lib").mkdir()
    assert find_class_path(tmp_path) == f"{tmp_path}/lib/*"


def test_what_is_not_built_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (OURS, "  controllerURI: tcp://127.0.0.1:1234"),
        (KAFKA_FSYNC, "  bootstrap.servers=tcp://127.0.0.1:1234"),
    ],
)
def test_a_driver_file_names_the_server(key: str, line: str) -> None:
    assert line in driver_file(server(key), "tcp://127.0.0.1:1234").splitlines()


def test_a_report_is_read() -> None:
    report = dict.fromkeys(REPORTED.values(), 1.5)
    outcome = read_report({**report, "publishRate": [10.0, 20.0], "backlog": [0]})
    assert outcome.numbers == {**dict.fromkeys(REPORTED, 1.5), RATE: 15.0}
    assert outcome.failure is None


def test_a_benchmark_that_does_not_end_after_its_report_is_read(tmp_path: Path) -> None:
    """Kafka's driver behaves like this."""
    path = tmp_path / "report.json"
    script = (
        "import sys, time; print('{}', file=open(sys.argv[1], 'w'), flush=True); time.sleep(300)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)])
    try:
        assert wait_for_report(process, path) == {}
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_benchmark_that_reports_nothing_has_failed(tmp_path: Path) -> None:
    outcome = run_benchmark("name: none\n", str(tmp_path), WORKLOAD, tmp_path)
    assert outcome.failure is not None
    assert "ClassNotFoundException" in outcome.failure
