"""``segstore recover`` in real processes: what it says, and what is there afterwards."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pravega_blocking.controller_client import ControllerClient

from .test_standalone import create_stream, events_of, write_numbers
from .test_wrong_files import newest_file, start_refused, written_bytes

if TYPE_CHECKING:
    from .conftest import Standalone

NewStore = Callable[[], "Standalone"]


def run_recover(store: "Standalone", *options: str, code: int = 0, answer: str = "") -> str:
    """Run the command; what it says."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pravega_admin", "recover"),
            *("--data-dir", str(store.data_dir), *options),
        ],
        input=answer,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def content_of(directory: Path) -> dict[str, bytes]:
    """Return all files below a directory, without locks and the files of running processes."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.suffix != ".lock" and "run" not in path.parts
    }


def filled(new_store: NewStore, *, number: int = signal.SIGTERM, events: int = 300) -> "Standalone":
    """Make a store that was started, written to and stopped once."""
    store = new_store()
    store.start()
    create_stream(store, "kept", 2)
    write_numbers(store, "kept", events, every=50, meanwhile=lambda: None)
    store.stop(number)
    return store


def check_goes_on(new_store: NewStore, *, count: int) -> None:
    """Check that the store starts, has these events, and takes new streams and events, twice."""
    for number in range(2):
        store = new_store()
        store.start()
        assert sorted(map(int, events_of(store, "kept"))) == list(range(count))
        create_stream(store, f"new{number}", 2)
        write_numbers(store, f"new{number}", 20, every=50, meanwhile=lambda: None)
        assert len(events_of(store, f"new{number}")) == 20
        with ControllerClient(store.controller) as controller:
            controller.seal_stream("demo", f"new{number}")
        assert store.stop() == 0


def test_a_sound_store_has_nothing_to_recover(new_store: NewStore) -> None:
    store = filled(new_store)
    before = content_of(store.data_dir)
    assert "nothing has to be recovered" in run_recover(store, "--yes")
    assert content_of(store.data_dir) == before
    check_goes_on(new_store, count=300)


def test_a_lost_journal_after_a_clean_stop_loses_nothing(new_store: NewStore) -> None:
    store = filled(new_store)
    shutil.rmtree(store.data_dir / "journal-0")
    before = content_of(store.data_dir)
    said = run_recover(store, "--dry-run")
    assert "put the journal back" in said
    assert "lost end" not in said
    assert content_of(store.data_dir) == before
    run_recover(store, answer="n\n", code=1)
    assert content_of(store.data_dir) == before
    said = run_recover(store, answer="y\n")
    [backup] = store.data_dir.glob("before-recover-*")
    assert str(backup) in said
    check_goes_on(new_store, count=300)


def test_an_older_journal_gives_way_to_what_tier_2_has(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store()
    store.start()
    create_stream(store, "kept", 2)
    assert store.stop() == 0
    journal = store.data_dir / "journal-0"
    shutil.copytree(journal, tmp_path / "older")
    store = new_store()
    store.start()
    write_numbers(store, "kept", 300, every=50, meanwhile=lambda: None)
    assert store.stop() == 0
    shutil.rmtree(journal)
    shutil.copytree(tmp_path / "older", journal)
    assert "an earlier state of" in start_refused(new_store())
    document: dict[str, Any] = json.loads(
        run_recover(store, "--dry-run", "-o", "json").partition("nothing was changed")[0]
    )
    assert document["problems"]
    assert [row for row in document["segments"] if row["what"] == "lost end"] == []
    run_recover(store, "--yes")
    [backup] = store.data_dir.glob("before-recover-*")
    assert content_of(backup / "journal-0") == content_of(tmp_path / "older")
    check_goes_on(new_store, count=300)


def test_a_journal_lost_with_its_last_writes_costs_those_alone(
    new_store: NewStore, tmp_path: Path
) -> None:
    """The events flushed before the kill are there: whole, in order, and none twice."""
    store = new_store()
    store.start()
    create_stream(store, "kept", 1)
    write_numbers(store, "kept", 2000, every=100, meanwhile=lambda: None)
    store.stop(signal.SIGKILL)
    shutil.rmtree(store.data_dir / "journal-0")
    run_recover(store, "--yes")
    store = new_store()
    store.start()
    with ControllerClient(store.controller) as controller:
        scopes = list(controller.list_scopes())
    if "demo" in scopes:
        streams = []
        with ControllerClient(store.controller) as controller:
            streams = [name.stream for name in controller.list_streams("demo")]
        if "kept" in streams:
            numbers = list(map(int, events_of(store, "kept")))
            assert numbers == list(range(len(numbers)))
    create_stream(store, "later", 2)
    write_numbers(store, "later", 20, every=50, meanwhile=lambda: None)
    assert len(events_of(store, "later")) == 20
    assert store.stop() == 0


def test_a_damaged_journal_gives_way_to_what_tier_2_has(new_store: NewStore) -> None:
    store = filled(new_store)
    file = newest_file(store.data_dir / "journal-0")
    with file.open("r+b") as opened:
        opened.truncate(written_bytes(file) - 100)
    assert "the file ends there" in start_refused(new_store())
    said = run_recover(store, "--dry-run")
    assert "the file ends there" in said
    assert "the data before the damage are used; of the data behind it, at most" in said
    document = json.loads(
        run_recover(store, "--dry-run", "-o", "json").partition("nothing was changed")[0]
    )
    [journal] = document["journals"]
    assert journal["path"] == str(store.data_dir / "journal-0")
    assert f"at most {journal['dropped_bytes_max']} bytes" in said
    assert (journal["is_readable"], journal["missing_files"]) == (True, [])
    run_recover(store, "--yes")
    check_goes_on(new_store, count=300)


def chunk_of(store: "Standalone", stream: str) -> Path:
    """Return the longest chunk of a stream's segments."""
    found = [
        path
        for path in (store.data_dir / "storage").rglob("*")
        if path.is_file() and f"/{stream}/" in str(path) and "attributes" not in path.name
    ]
    return max(found, key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("left", [0, 1000])
def test_a_lost_tail_of_tier_2_costs_the_segments_end(new_store: NewStore, left: int) -> None:
    store = filled(new_store)
    chunk = chunk_of(store, "kept")
    length = chunk.stat().st_size
    if left:
        with chunk.open("r+b") as opened:
            opened.truncate(left)
    else:
        chunk.unlink()
    said = run_recover(store, "--dry-run")
    assert "are missing in tier 2" in said
    assert "lost end" in said
    run_recover(store, "--yes")
    store = new_store()
    store.start()
    numbers = sorted(map(int, events_of(store, "kept")))
    assert 0 < len(numbers) < 300
    assert len(set(numbers)) == len(numbers)
    write_numbers(store, "kept", 50, every=10, meanwhile=lambda: None)
    assert len(events_of(store, "kept")) == len(numbers) + 50
    assert store.stop() == 0
    assert length > left
