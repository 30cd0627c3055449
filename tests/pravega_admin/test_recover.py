"""``segstore recover`` in real processes: what it says, and what is there afterwards."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from msgspec import structs

from pravega_admin.inspection.recovered_streams import RecordedStreams, read_streams
from pravega_controller.metadata.records import decode, encode
from pravega_controller.metadata.transaction_records import TransactionRecord
from pravega_controller.rules.transactions import TransactionState
from segstore.process.config import SegmentStoreConfig
from segstore.repair.recover import Tables, open_recovery
from segstore_client.blocking.transaction_writer import TransactionWriter
from segstore_client.controller.controller_client import BegunTransaction, ControllerClient
from segstore_client.cuts.segment_info import tail_offsets
from segstore_client.errors import RefusedError
from support.rare_parameters import mark_rare

from .serving.test_standalone import create_stream, events_of, write_numbers
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


def started(new_store: NewStore) -> "Standalone":
    """Start a new store and write 300 events to it."""
    store = new_store()
    store.start()
    create_stream(store, "kept", 2)
    write_numbers(store, "kept", 300, every=50, meanwhile=lambda: None)
    return store


def filled(new_store: NewStore) -> "Standalone":
    """Make a store that was started, written to and stopped once."""
    store = started(new_store)
    store.stop()
    return store


def check_goes_on(new_store: NewStore, *, count: int, starts: int = 1) -> None:
    """Check that the store has these events at each start, and takes new streams and events."""
    for number in range(starts):
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


@pytest.mark.proof
def test_a_lost_journal_after_a_clean_stop_loses_nothing(new_store: NewStore) -> None:
    store = filled(new_store)
    shutil.rmtree(store.data_dir / "journal-0")
    before = content_of(store.data_dir)
    said = run_recover(store, "--dry-run")
    assert "put the journal back" in said
    assert "has lost" not in said
    assert content_of(store.data_dir) == before
    run_recover(store, answer="n\n", code=1)
    assert content_of(store.data_dir) == before
    said = run_recover(store, answer="y\n")
    [backup] = store.data_dir.glob("before-recover-*")
    assert str(backup) in said
    check_goes_on(new_store, count=300)


@pytest.mark.proof
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
    assert document["lost"] == []
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


@pytest.mark.proof
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
    check_goes_on(new_store, count=300, starts=2)


def chunk_of(store: "Standalone", stream: str) -> Path:
    """Return the longest chunk of a stream's segments."""
    found = [
        path
        for path in (store.data_dir / "storage").rglob("*")
        if path.is_file() and f"/{stream}/" in str(path) and "attributes" not in path.name
    ]
    return max(found, key=lambda path: path.stat().st_size)


def lost_ranges(store: "Standalone") -> list[tuple[int, int, int]]:
    """Return what a recovery would lose of streams: segment, first offset, end."""
    said = run_recover(store, "--dry-run", "-o", "json").partition("nothing was changed")[0]
    rows: list[dict[str, Any]] = json.loads(said)["lost"]
    assert {(row["scope"], row["stream"]) for row in rows} <= {("demo", "kept")}
    return [(row["segment"], row["from"], row["to"]) for row in rows]


@pytest.mark.proof
@pytest.mark.parametrize("left", mark_rare([0, 1000], 1))
def test_what_tier_2_has_lost_is_told_and_offsets_stay(new_store: NewStore, left: int) -> None:
    store = filled(new_store)
    chunk = chunk_of(store, "kept")
    length = chunk.stat().st_size
    if left:
        with chunk.open("r+b") as opened:
            opened.truncate(left)
    else:
        chunk.unlink()
    [(segment, begin, end)] = lost_ranges(store)
    assert end == length
    assert left - 20 < begin <= left
    said = run_recover(store, "--yes")
    assert f"stream demo/kept has lost the bytes from {begin} to {end} of segment {segment}" in said
    assert "the controller's records and the store agree: " in said
    after = content_of(store.data_dir)
    assert "nothing has to be recovered" in run_recover(store, "--yes")
    assert content_of(store.data_dir) == after
    store = new_store()
    store.start()
    with ControllerClient(store.controller) as controller:
        head = controller.head_segments("demo", "kept").offsets
        assert head[segment] == (0 if left else end)
    write_numbers(store, "kept", 50, every=10, meanwhile=lambda: None)
    if left:
        sentence = f"the bytes from {begin} to {end} of demo/kept/.* were lost: truncate it at"
        with pytest.raises(RefusedError, match=sentence):
            events_of(store, "kept")
        with ControllerClient(store.controller) as controller:
            ends = tail_offsets(controller, "demo", "kept")
            cut = {each: end if each == segment else 0 for each in ends}
            controller.truncate_stream("demo", "kept", cut)
    numbers = [int(event) for event in events_of(store, "kept")]
    assert set(range(50)) <= set(numbers)
    assert 50 < len(numbers) < 350
    assert store.stop() == 0


@pytest.mark.proof
def test_a_truncated_segment_whose_chunk_is_lost_goes_on_at_its_end(new_store: NewStore) -> None:
    """It came back as 0..0 below the stream's head: readers got nothing of what came after."""
    store = new_store()
    store.start()
    create_stream(store, "kept", 1)
    write_numbers(store, "kept", 2000, every=500, meanwhile=lambda: None)
    with ControllerClient(store.controller) as controller:
        [(segment, end)] = tail_offsets(controller, "demo", "kept").items()
        head = 2 * end // 3
        controller.truncate_stream("demo", "kept", {segment: head})
    assert store.stop() == 0
    chunk_of(store, "kept").unlink()
    assert lost_ranges(store) == [(segment, head, end)]
    run_recover(store, "--yes")
    store = new_store()
    store.start()
    write_numbers(store, "kept", 10, every=10, meanwhile=lambda: None)
    assert sorted(int(event) for event in events_of(store, "kept")) == list(range(10))
    assert store.stop() == 0


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_a_recovery_that_is_killed_is_run_again(new_store: NewStore) -> None:
    store = filled(new_store)
    store = new_store()
    store.start()
    create_stream(store, "harmed", 1)
    write_numbers(store, "harmed", 100, every=50, meanwhile=lambda: None)
    assert store.stop() == 0
    chunk_of(store, "harmed").unlink()
    command = [*(sys.executable, "-m", "pravega_admin", "recover", "--yes")]
    command += ["--data-dir", str(store.data_dir)]
    kills = 0
    for wait in (each / 20 for each in range(4, 400)):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            process.wait(timeout=wait)
        except subprocess.TimeoutExpired:
            kills += 1
        process.kill()
        said = process.communicate()[0].decode()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said
    assert kills > 3
    run_recover(store, "--yes")
    assert "nothing has to be recovered" in run_recover(store)
    check_goes_on(new_store, count=300)


def begin_filled(controller: ControllerClient, event: int, count: int = 50) -> BegunTransaction:
    """Begin a transaction and write the same event some times, to both segments."""
    begun = controller.begin_transaction("demo", "kept", 600_000)
    locate = partial(controller.segment_address, "demo", "kept")
    with closing(TransactionWriter("demo", "kept", begun, locate)) as writer:
        writer.write([f"{event}"] * count, [f"key-{n}" for n in range(count)])
        writer.flush()
    return begun


def stopped_with_transactions(new_store: NewStore) -> "tuple[Standalone, bytes, bytes]":
    """Return a store that does not run, and its two open transactions."""
    store = started(new_store)
    with ControllerClient(store.controller) as controller:
        first, second = (begin_filled(controller, n).identifier for n in (1000, 2000))
    assert store.stop() == 0
    return store, first, second


@pytest.mark.proof
def test_an_open_transaction_that_has_lost_events_is_aborted(new_store: NewStore) -> None:
    """Its commit stored what was left, and said that all was stored."""
    store, harmed, whole = stopped_with_transactions(new_store)
    found = (store.data_dir / "storage").rglob(f"*{harmed.hex()}.S-*.E*")
    # The loss of an attribute index is no loss of events.
    next(path for path in found if "attributes" not in path.name).unlink()
    sentence = f"transaction {harmed.hex()} of demo/kept has lost events: it is aborted"
    assert sentence in run_recover(store, "--yes")
    assert "nothing has to be recovered" in run_recover(store)
    store = new_store()
    store.start()
    with ControllerClient(store.controller) as controller:
        assert not controller.commit_transaction("demo", "kept", harmed)
        assert controller.commit_transaction("demo", "kept", whole)
        while controller.transaction_state("demo", "kept", whole) != "committed":
            time.sleep(0.05)
        assert controller.transaction_state("demo", "kept", harmed) == "aborted"
    numbers = [int(event) for event in events_of(store, "kept")]
    assert sorted(numbers) == [*range(300), *[2000] * 50]
    assert store.stop() == 0


def accept_commit(store: "Standalone", identifier: bytes) -> None:
    """Record an open transaction's commit, as a controller that dies before it merges it: by a
    recovery, which can write to the controller's tables of a store that does not run."""

    def find_required(tables: Tables) -> RecordedStreams:
        found = read_streams(tables)
        [mine] = (each for each in found.transactions if identifier.hex() in each.called)
        record = decode(tables[mine.table][mine.key], TransactionRecord)
        value = encode(structs.replace(record, state=TransactionState.COMMITTING))
        found.transactions = [replace(mine, segments=("nowhere",), aborting=value)]
        return found

    async def main() -> None:
        async with open_recovery(SegmentStoreConfig(data_dir=store.data_dir)) as recovery:
            await recovery.run(await recovery.plan(find_required=find_required))

    shutil.rmtree(store.data_dir / "journal-0")
    trio.run(main)


@pytest.mark.parametrize(
    "lost", ["both segments", pytest.param("one segment", marks=pytest.mark.proof)]
)
def test_a_commit_that_has_lost_events_ends_and_those_after_it_do(
    new_store: NewStore, lost: str
) -> None:
    """Its merge was refused each time it was tried, and no later commit of the stream was made."""
    store, harmed, whole = stopped_with_transactions(new_store)
    accept_commit(store, harmed)
    found = sorted((store.data_dir / "storage").rglob(f"*{harmed.hex()}.S-*.E*"))
    chunks = [path for path in found if "attributes" not in path.name]
    assert len(chunks) == 2
    taken = chunks[:1] if lost == "one segment" else chunks
    for chunk in taken:
        chunk.unlink()
    said = run_recover(store, "--yes")
    sentence = f"transaction {harmed.hex()} of demo/kept is being committed, and has lost events in"
    assert said.count(sentence) == len(taken)
    assert "nothing has to be recovered" in run_recover(store)
    store = new_store()
    store.start()
    with ControllerClient(store.controller) as controller:
        assert controller.commit_transaction("demo", "kept", whole)
        for identifier in (harmed, whole):
            while controller.transaction_state("demo", "kept", identifier) != "committed":
                time.sleep(0.05)
    numbers = sorted(int(event) for event in events_of(store, "kept"))
    rest = numbers.count(1000)
    assert numbers == [*range(300), *[1000] * rest, *[2000] * 50]
    assert (0 < rest < 50) if lost == "one segment" else rest == 0
    assert store.stop() == 0
