"""Who may use a data directory."""

import multiprocessing
import os
from pathlib import Path

import pytest

from pravega_admin import data_directory
from pravega_admin.data_directory import open_run_directory
from pravega_admin.errors import ConfigurationError


def test_a_new_directory_is_created(tmp_path: Path) -> None:
    with open_run_directory(tmp_path / "new" / "data") as directory:
        directory.write_pid("controller", 7)
        assert (tmp_path / "new" / "data" / "run" / "controller.pid").read_text() == "7\n"
        directory.remove_pid("controller")
        directory.remove_pid("controller")
        assert not (directory.path / "controller.pid").exists()


def test_a_directory_in_use_is_refused_at_once_with_its_user(tmp_path: Path) -> None:
    with open_run_directory(tmp_path) as directory:
        directory.write_pid("standalone", os.getpid())
        with (
            pytest.raises(ConfigurationError, match=rf"in use.*process {os.getpid()}"),
            open_run_directory(tmp_path),
        ):
            pytest.fail("opened twice")
    with open_run_directory(tmp_path):
        pass


def hold(path: Path, descriptor: int, seconds: float) -> None:
    """Keep the inherited lock as a child of a killed supervisor does for a moment."""
    import time

    time.sleep(seconds)


def test_the_last_child_of_a_dead_supervisor_is_waited_for(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with open_run_directory(tmp_path) as directory:
        directory.write_pid("standalone", 2**22 + 1)
        straggler = context.Process(target=hold, args=(tmp_path, directory.lock_descriptor, 0.3))
        straggler.start()
    with open_run_directory(tmp_path):
        assert not straggler.is_alive()
    straggler.join()


def test_a_lock_nobody_explains_is_refused_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_directory, "LOCK_SECONDS", 0.1)
    with (
        open_run_directory(tmp_path),
        pytest.raises(ConfigurationError, match=r"in use by another segstore$"),
        open_run_directory(tmp_path),
    ):
        pytest.fail("opened twice")


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with (
        pytest.raises(ConfigurationError, match="cannot be used: Not a directory"),
        open_run_directory(tmp_path / "data"),
    ):
        pytest.fail("opened a file")
