"""A data directory belongs to one store, and one process at a time uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segstore.errors import DataDirectoryError, DataDirectoryInUseError
from segstore.ownership import data_directory
from segstore.ownership.data_directory import VERSION_FILE, DataDirectory, StoreState


def test_a_new_directory_is_made_with_those_above_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    directory = DataDirectory.open(path, container_count=8, journal_count=2)
    assert os.listdir(path) == [VERSION_FILE]
    assert DataDirectory.open(path, container_count=8) == directory
    assert directory.journal_count == 2
    assert [directory.journal_of(container) for container in range(4)] == [0, 1, 0, 1]


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "lost+found").mkdir()
    DataDirectory.open(tmp_path)
    assert (tmp_path / VERSION_FILE).exists()


def test_a_directory_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(DataDirectoryError, match=r"holds thesis\.tex and no segstore\.toml"):
        DataDirectory.open(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirectoryError, match="directory"):
            DataDirectory.open(path)


def test_an_older_segstore_refuses_what_this_one_has_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory.open(tmp_path)
    monkeypatch.setattr(data_directory, "READ_VERSIONS", frozenset({9}))
    with pytest.raises(DataDirectoryError, match="has format version 3; this segstore reads"):
        DataDirectory.open(tmp_path)


def test_a_new_directory_has_an_identity_of_its_own(tmp_path: Path) -> None:
    one, other = DataDirectory.open(tmp_path / "1"), DataDirectory.open(tmp_path / "2")
    assert len(one.store_id) == len(other.store_id) == 32
    assert one.store_id != other.store_id
    assert one.state is StoreState.NEW


def test_what_is_noted_is_read_again(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path, container_count=3, journal_count=2)
    for place in ("s3://bucket/a/", '/a "b" \\ \u00e4 \U0001f600', "/b\n\udcff"):
        written = directory.write(
            store_id=directory.store_id, state=StoreState.COMPLETE, tier_2=place
        )
        found = DataDirectory.open(tmp_path, container_count=3)
        assert found == DataDirectory.read(tmp_path)
        assert found.tier_2 == "".join(each if each.isprintable() else "?" for each in place)
        assert (found.store_id, found.state) == (written.store_id, StoreState.COMPLETE)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("format_version = 5\n", "has format version 5; this segstore reads versions 3 to 4"),
        (
            "format_version = 2\ncontainer_count = 4\njournal_count = 1\n",
            "has format version 2; this segstore reads versions 3 to 4",
        ),
        (
            "format_version = 3\ncontainer_count = 4\njournal_count = 1\n",
            "does not say which store it belongs to",
        ),
        *(
            (
                "format_version = 4\ncontainer_count = 2\njournal_count = 2\n"
                f"store_id = '{'0' * 32}'\nstate = 'complete'\ntier_2 = ''\n{moved}",
                "does not say which journal has the log of each container",
            )
            for moved in (
                "",
                "layout = 0\njournals = [0, 1]\nstores = [0, 1]\n",
                "layout = 1\njournals = [0]\nstores = [0, 1]\n",
                "layout = 1\njournals = [0, 2]\nstores = [0, 1]\n",
                "layout = 1\njournals = [0, 1]\nstores = [1, 2]\n",
                "layout = 1\njournals = [0, 1]\nstores = 'x'\n",
            )
        ),
        ("", "has format version None"),
        ("format_version = ", "is damaged"),
        ("format_version = 3\n", "its counts are"),
        ("format_version = 3\ncontainer_count = 0\njournal_count = 1\n", "its counts are"),
        ("format_version = 3\ncontainer_count = 4\njournal_count = 'x'\n", "its counts are"),
        ("\ufffd\n", "is damaged"),
    ],
)
def test_another_version_file_is_refused_and_not_changed(
    tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / VERSION_FILE).write_text(text)
    with pytest.raises(DataDirectoryError, match=sentence):
        DataDirectory.open(tmp_path)
    assert (tmp_path / VERSION_FILE).read_text() == text


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    (tmp_path / VERSION_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataDirectoryError, match="is damaged"):
        DataDirectory.open(tmp_path)


def test_another_count_of_containers_is_refused(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path, container_count=4)
    directory.write(store_id=directory.store_id, state=StoreState.COMPLETE, tier_2="")
    with pytest.raises(DataDirectoryError, match="made for 4 containers and cannot be used with 8"):
        DataDirectory.open(tmp_path, container_count=8)


def test_the_counts_may_change_while_nothing_was_ever_stored(tmp_path: Path) -> None:
    first = DataDirectory.open(tmp_path, container_count=4)
    changed = DataDirectory.open(tmp_path, container_count=8, journal_count=2)
    assert (changed.container_count, changed.journal_count) == (8, 2)
    assert changed.store_id == first.store_id
    assert DataDirectory.read(tmp_path) == changed
    changed.journal_path(1).mkdir()
    with pytest.raises(DataDirectoryError, match="made for 8 containers and cannot be used with 4"):
        DataDirectory.open(tmp_path, container_count=4)


def test_the_counts_do_not_change_under_a_start_that_is_under_way(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path, container_count=4)
    with (
        directory.lock_journals([0]),
        pytest.raises(DataDirectoryInUseError),
    ):
        DataDirectory.open(tmp_path, container_count=8)
    DataDirectory.open(tmp_path, container_count=8)
    with pytest.raises(DataDirectoryError, match="start again"), directory.lock_journals([0]):
        pytest.fail("used with a count that is another's")


def test_what_a_crash_left_of_the_making_does_not_disturb(tmp_path: Path) -> None:
    (tmp_path / f"{VERSION_FILE}.new-123").write_text("format_ver")
    DataDirectory.open(tmp_path)
    assert DataDirectory.open(tmp_path).container_count == 4


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        DataDirectory.open(tmp_path / "data")


def test_a_journal_has_one_user_in_a_process(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path, journal_count=2)
    with directory.lock_journal(0) as path, directory.lock_journal(1) as other:
        assert path != other
        with (
            pytest.raises(DataDirectoryError, match=f"process {os.getpid()}"),
            directory.lock_journal(0),
        ):
            pass
    with directory.lock_journal(0):
        pass


HOLDER = """
import sys, time
from pathlib import Path
from segstore.ownership.data_directory import DataDirectory
directory = DataDirectory.open(Path(sys.argv[1]))
with directory.lock_journal(0):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.processes
def test_another_process_is_named_and_its_death_frees_the_journal(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        directory = DataDirectory.open(tmp_path)
        with (
            pytest.raises(DataDirectoryError) as caught,
            directory.lock_journal(0, wait_seconds=0.1),
        ):
            pass
        sentence = str(caught.value)
        assert sentence.startswith(
            f"data directory {tmp_path} is in use by process {holder.pid} (python"
        )
        assert sentence.endswith("), which holds journal-0.lock: end it, or name another directory")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with directory.lock_journal(0):
            pass
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


@pytest.mark.processes
def test_makers_at_the_same_time_agree(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path;"
        "from segstore.ownership.data_directory import DataDirectory;"
        "print(DataDirectory.open(Path(sys.argv[1]), journal_count=int(sys.argv[2])).journal_count)"
    )
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "data"), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(1, 5)
    ]
    answers = {maker.communicate()[0] for maker in makers}
    assert all(maker.returncode == 0 for maker in makers)
    assert len(answers) == 1
    assert os.listdir(tmp_path / "data") == [VERSION_FILE]


def test_a_directory_that_another_process_made_meanwhile_is_not_foreign(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", journal_count=2)
    # Between looking for the version file and at the rest, another process may finish.
    data_directory._refuse_foreign(tmp_path / "data")
    assert DataDirectory.open(tmp_path / "data").journal_count == 2
