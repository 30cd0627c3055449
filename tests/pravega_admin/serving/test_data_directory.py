"""Only one command at a time uses a data directory."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pravega_admin.errors import ConfigurationError
from pravega_admin.serving.data_directory import open_run_directory


def test_a_new_directory_is_made_and_names_its_processes(tmp_path: Path) -> None:
    run = tmp_path / "new" / "data" / "run"
    with open_run_directory(tmp_path / "new" / "data") as directory:
        assert (run / "standalone.pid").read_text() == f"{os.getpid()}\n"
        directory.write_pid("controller", 7)
        assert (run / "controller.pid").read_text() == "7\n"
        directory.remove_pid("controller")
        directory.remove_pid("controller")
    assert list(run.iterdir()) == []


def test_a_directory_in_use_is_refused_with_its_user(tmp_path: Path) -> None:
    with (
        open_run_directory(tmp_path),
        pytest.raises(ConfigurationError, match=rf"in use.*process {os.getpid()}"),
        open_run_directory(tmp_path),
    ):
        pytest.fail("opened twice")
    with open_run_directory(tmp_path):
        pass


@pytest.mark.processes
def test_a_process_that_ends_with_the_lock_is_waited_for(tmp_path: Path) -> None:
    source = """
        import os, sys, time
        from pathlib import Path
        from pravega_admin.serving.data_directory import open_run_directory
        with open_run_directory(Path(sys.argv[1])):
            child = os.fork()
            if child == 0:
                os.close(1)
                time.sleep(0.5)
                os._exit(0)
            print(child, flush=True)
            os._exit(1)
    """
    command = [sys.executable, "-c", textwrap.dedent(source), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    straggler = Path("/proc", done.stdout.strip(), "stat")
    assert straggler.exists()
    with open_run_directory(tmp_path):
        # Where nobody collects orphans it stays as a zombie, which holds nothing.
        assert not straggler.exists() or ") Z " in straggler.read_text()


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("not a store")
    with (
        pytest.raises(ConfigurationError, match="not a segstore data directory"),
        open_run_directory(tmp_path),
    ):
        pytest.fail("opened somebody else's directory")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_container_count_is_refused(tmp_path: Path) -> None:
    with open_run_directory(tmp_path, container_count=4):
        (tmp_path / "journal-0").mkdir()
    with (
        pytest.raises(ConfigurationError, match="was made for 4 containers"),
        open_run_directory(tmp_path, container_count=8),
    ):
        pytest.fail("opened with other containers")


def test_a_directory_of_another_version_is_refused(tmp_path: Path) -> None:
    with open_run_directory(tmp_path):
        pass
    version_file = tmp_path / "segstore.toml"
    version_file.write_text(
        version_file.read_text().replace("format_version = 3", "format_version = 99")
    )
    with (
        pytest.raises(ConfigurationError, match="format version 99"),
        open_run_directory(tmp_path),
    ):
        pytest.fail("opened another version's directory")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with (
        pytest.raises(ConfigurationError, match="not a directory"),
        open_run_directory(tmp_path / "data"),
    ):
        pytest.fail("opened a file")
