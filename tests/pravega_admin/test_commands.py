"""The verbs for scopes, streams and events against a running store."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from foreign_servers.pauses import pause_process
from typer.testing import CliRunner, Result

from pravega_admin.output import output
from pravega_admin.verbs import app
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import NAME_RULE, USER_NAME_RULE
from pravega_wire.transaction_ids import id_of_halves
from segstore_client.blocking.table import BlockingTable
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.steps import table_steps
from segstore_client.steps.table_steps import TableReply, TableRequest

if TYPE_CHECKING:
    from .conftest import Standalone

Invoke = Callable[..., Result]
Interrupted = tuple["subprocess.Popen[bytes]", "subprocess.Popen[str]"]
"""The source and the writer of a pipe."""

NUMBERS = itertools.count()


@pytest.fixture
def invoke(store: "Standalone") -> Invoke:
    def run(*arguments: str, input: bytes | str | None = None, code: int = 0) -> Result:
        environment = {"SEGSTORE_CONTROLLER": store.controller}
        result = CliRunner().invoke(app, list(arguments), input=input, env=environment)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def scope(invoke: Invoke) -> str:
    name = f"scope{next(NUMBERS)}"
    invoke("scope", "create", name)
    return name


@pytest.fixture
def stream(invoke: Invoke, scope: str) -> Iterator[str]:
    name = f"{scope}/stream"
    invoke("stream", "create", name, "--segments", "2")
    yield name
    invoke("stream", "delete", name, "--seal", "--if-exists")


def described(invoke: Invoke, stream: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(invoke("stream", "describe", stream, "-o", "json").stdout)
    return document


def keyed_lines(first: int, count: int, keys: int = 10) -> bytes:
    numbers = range(first, first + count)
    return b"".join(b"key-%d %d\n" % (number % keys, number) for number in numbers)


def assert_every_key_is_in_order(lines: list[str], count: int) -> None:
    """Check that the lines are ``keyed_lines`` from 0 on: each once, those of a key in order."""
    assert len(lines) == count
    assert len(set(lines)) == count
    last: dict[str, int] = {}
    for line in lines:
        key, number = line.split()
        assert last.get(key, -1) < int(number)
        last[key] = int(number)


# ---- Scopes --------------------------------------------------------------------------------------


def test_scopes_are_created_listed_and_deleted(invoke: Invoke) -> None:
    assert invoke("scope", "create", "fruit").stderr == "scope fruit created\n"
    assert "fruit" in invoke("scope", "list").stdout.split()
    listed = json.loads(invoke("scope", "list", "-o", "json").stdout)
    assert {"scope": "fruit"} in listed
    assert not any(row["scope"].startswith("_") for row in listed)
    assert "_system" in invoke("scope", "list", "--system").stdout.split()
    assert json.loads(invoke("scope", "delete", "fruit", "-o", "json").stdout) == {
        "scope": "fruit",
        "deleted": True,
    }
    assert "fruit" not in invoke("scope", "list").stdout.split()


def test_a_scope_that_exists_is_exit_code_4_or_nothing_to_do(invoke: Invoke, scope: str) -> None:
    result = invoke("scope", "create", scope, code=4)
    assert result.stderr == f"segstore: scope {scope} exists already\n"
    result = invoke("scope", "create", scope, "--if-not-exists", "-o", "json")
    assert json.loads(result.stdout) == {"scope": scope, "created": False}


def test_a_scope_with_streams_is_deleted_only_recursively(
    invoke: Invoke, scope: str, stream: str
) -> None:
    result = invoke("scope", "delete", scope, code=6)
    assert result.stderr == f"segstore: scope {scope} is not empty\n"
    invoke("scope", "delete", scope, "--recursive")
    invoke("stream", "list", scope, code=3)


@pytest.mark.parametrize(
    "arguments",
    [
        ["scope", "delete", "absent"],
        ["stream", "list", "absent"],
        ["stream", "create", "absent/stream"],
        ["stream", "describe", "absent/stream"],
        ["stream", "seal", "absent/stream"],
        ["stream", "delete", "absent/stream"],
        ["stream", "update", "absent/stream", "--tag", "t"],
        ["stream", "scale", "absent/stream", "--segments", "2"],
        ["stream", "truncate", "absent/stream", "--tail"],
        ["read", "absent/stream"],
        ["write", "absent/stream"],
    ],
    ids=" ".join,
)
def test_what_does_not_exist_is_one_sentence_and_exit_code_3(
    invoke: Invoke, arguments: list[str]
) -> None:
    result = invoke(*arguments, input=b"line\n", code=3)
    assert result.stdout == ""
    assert "does not exist" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["no good", "\u00fcn\u00ef", ".", "..", "a_b", "x" * 256])
def test_names_that_cannot_be_are_exit_code_2_with_the_rule(
    invoke: Invoke, scope: str, name: str
) -> None:
    refused = invoke("scope", "create", name, code=2)
    assert refused.stderr.endswith(f"cannot be the name of a scope: {NAME_RULE}\n")
    refused = invoke("stream", "create", f"{scope}/{name}", code=2)
    assert refused.stderr.endswith(f"cannot be the name of a stream: {NAME_RULE}\n")
    refused = invoke("table", "create", f"{scope}/{name}", code=2)
    assert refused.stderr.endswith(f"cannot be the name of a key-value table: {USER_NAME_RULE}\n")


# ---- Streams -------------------------------------------------------------------------------------


def test_a_stream_shows_what_it_was_created_with(invoke: Invoke, scope: str) -> None:
    name = f"{scope}/rich"
    invoke(
        *("stream", "create", name, "--segments", "3", "--scale-by-events", "100"),
        *("--scale-factor", "4", "--retention-size", "10GB", "--retention-max", "20GB"),
        *("--tag", "blue", "--tag", "red", "--rollover-size", "64MiB"),
    )
    fields = described(invoke, name)
    segments = fields.pop("segments")
    assert fields == {
        "scope": scope,
        "stream": "rich",
        "sealed": False,
        "epoch": 0,
        "scaling": "events",
        "segments_min": 3,
        "target_rate": 100,
        "scale_factor": 4,
        "retention": "size",
        "retention_min_bytes": 10 * 10**9,
        "retention_max_bytes": 20 * 10**9,
        "tags": ["blue", "red"],
        "rollover_size_bytes": 64 * 2**20,
        "head": {"0": 0, "1": 0, "2": 0},
    }
    assert [segment["number"] for segment in segments] == [0, 1, 2]
    assert segments[0]["low_key"] == 0.0
    assert segments[-1]["high_key"] == 1.0
    invoke("stream", "scale", name, "--split", "1")
    document = json.loads(invoke("stream", "describe", name, "--epochs", "9", "-o", "json").stdout)
    assert document["epoch"] == 1
    assert document["epochs"] == [{"epoch": 0, "segments": 3}, {"epoch": 1, "segments": 4}]
    shown = invoke("stream", "describe", name, "--epochs", "1").stdout
    assert shown.splitlines()[-1].split() == ["1", "4"]
    table = invoke("stream", "describe", name).stdout
    assert "target rate" in table
    assert "LOW KEY" in table


def test_an_update_changes_what_it_names_and_nothing_else(invoke: Invoke, scope: str) -> None:
    name = f"{scope}/changing"
    invoke("stream", "create", name, "--retention-time", "7d", "--tag", "a", "--tag", "b")
    invoke("stream", "update", name, "--untag", "a", "--tag", "c")
    fields = described(invoke, name)
    assert fields["tags"] == ["b", "c"]
    assert fields["retention_min_ms"] == 7 * 86_400_000
    invoke("stream", "update", name, "--no-retention", "--scale-by-kbytes", "50")
    fields = described(invoke, name)
    assert (fields["retention"], fields["scaling"], fields["scale_factor"]) == ("none", "kbytes", 2)
    result = invoke("stream", "update", name, "--tag", "c", "-o", "json")
    assert json.loads(result.stdout) == {"stream": name, "updated": False}


def test_streams_are_listed_without_internal_ones_and_by_tag(invoke: Invoke, scope: str) -> None:
    invoke("stream", "create", f"{scope}/one", "--tag", "t")
    invoke("stream", "create", f"{scope}/two")
    rows = json.loads(invoke("stream", "list", scope, "-o", "json").stdout)
    assert rows == [{"scope": scope, "stream": "one"}, {"scope": scope, "stream": "two"}]
    assert invoke("stream", "list", scope, "--tag", "t").stdout.split()[-1] == "one"


def test_a_stream_that_exists_is_exit_code_4_or_nothing_to_do(invoke: Invoke, stream: str) -> None:
    invoke("stream", "create", stream, code=4)
    invoke("stream", "create", stream, "--if-not-exists")


def test_only_a_sealed_stream_is_deleted(invoke: Invoke, stream: str) -> None:
    result = invoke("stream", "delete", stream, code=6)
    assert result.stderr == f"segstore: stream {stream} must be sealed first\n"
    invoke("stream", "seal", stream)
    invoke("stream", "seal", stream)
    invoke("stream", "delete", stream)
    invoke("stream", "delete", stream, code=3)
    invoke("stream", "delete", stream, "--if-exists")


def test_a_sealed_stream_takes_no_events_but_gives_them(invoke: Invoke, stream: str) -> None:
    invoke("write", stream, input=b"last words\n")
    invoke("stream", "seal", stream)
    result = invoke("write", stream, input=b"too late\n", code=6)
    assert f"stream {stream} is sealed" in result.stderr
    assert invoke("read", stream).stdout == "last words\n"
    assert invoke("read", stream, "--follow").stdout == "last words\n"
    result = invoke("read", stream, "--count", "2", code=1)
    assert "ended after 1 of 2 events" in result.stderr
    assert described(invoke, stream)["sealed"] is True


# ---- Scaling and truncation ----------------------------------------------------------------------


def test_segments_are_split_merged_and_replaced(invoke: Invoke, stream: str) -> None:
    invoke("stream", "scale", stream, "--split", "0", "--into", "3")
    segments = described(invoke, stream)["segments"]
    assert [segment["epoch"] for segment in segments] == [1, 1, 1, 0]
    first, second = (str(segment["id"]) for segment in segments[:2])
    result = invoke("stream", "scale", stream, "--merge", f"{second},{first}", "-o", "json")
    assert len(json.loads(result.stdout)["segments"]) == 3
    invoke("stream", "scale", stream, "--segments", "5")
    segments = described(invoke, stream)["segments"]
    assert len(segments) == 5
    assert all(left["high_key"] == right["low_key"] for left, right in itertools.pairwise(segments))
    result = invoke("stream", "scale", stream, "--split", "0", code=3)
    assert "segment 0 is not one of the stream's current segments" in result.stderr


def test_events_keep_the_order_of_their_keys_through_scalings(invoke: Invoke, stream: str) -> None:
    invoke("write", stream, "--key-field", "1", "-d", " ", input=keyed_lines(0, 500))
    invoke("stream", "scale", stream, "--segments", "7")
    invoke("write", stream, "--key-field", "1", "-d", " ", input=keyed_lines(500, 500))
    invoke("stream", "scale", stream, "--segments", "2")
    invoke("write", stream, "--key-field", "1", "-d", " ", input=keyed_lines(1000, 500))
    lines = invoke("read", stream).stdout.splitlines()
    assert_every_key_is_in_order(lines, 1500)


def test_truncation_at_the_tail_leaves_what_comes_after(invoke: Invoke, stream: str) -> None:
    invoke("write", stream, input=b"old\n" * 100)
    invoke("stream", "truncate", stream, "--tail")
    assert invoke("read", stream).stdout == ""
    invoke("write", stream, input=b"new\n")
    assert invoke("read", stream).stdout == "new\n"


def test_truncation_at_a_cut(invoke: Invoke, scope: str) -> None:
    name = f"{scope}/cut"
    invoke("stream", "create", name)
    invoke("write", name, input=b"one\ntwo\nthree\n")
    rows = [json.loads(line) for line in invoke("read", name, "-o", "json").stdout.splitlines()]
    assert [row["event"] for row in rows] == ["one", "two", "three"]
    assert [row["offset"] for row in rows] == [0, 11, 22]
    result = invoke("stream", "truncate", name, "--cut", f"0:{rows[1]['offset']}", "-o", "json")
    assert json.loads(result.stdout)["head"] == {"0": 11}
    assert invoke("read", name).stdout == "two\nthree\n"


def test_a_cut_that_is_none_is_refused_with_the_reason(invoke: Invoke, scope: str) -> None:
    """It was: could not truncate."""
    name = f"{scope}/refused"
    invoke("stream", "create", name)
    for cut, reason in (
        ("5:7", "segment 5 does not belong to this stream"),
        ("0:7", "offset 7 lies beyond the 0 bytes of segment 0"),
        ("0:-1", "offset -1 is the end of a sealed segment, and segment 0 is not sealed"),
    ):
        result = invoke("stream", "truncate", name, "--cut", cut, code=1)
        sentence = f"segstore: the controller could not truncate {name}: {reason}\n"
        assert result.stderr == sentence


# ---- Events --------------------------------------------------------------------------------------


def test_lines_come_back_as_they_went_in(invoke: Invoke, stream: str) -> None:
    text = "first\n\n  spaces  \nümlaut ✓\nlast without end"
    result = invoke("write", stream, "--key", "one key", input=text.encode())
    assert "5 events" in result.stderr
    assert result.stdout == ""
    assert invoke("read", stream).stdout == text + "\n"


def test_a_file_is_written_and_reported_as_json(
    invoke: Invoke, stream: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(keyed_lines(0, 20_000))
    result = invoke("write", stream, str(path), "--key-field", "1", "-d", " ", "-o", "json")
    report = json.loads(result.stdout)
    assert report.pop("seconds") >= 0
    assert report == {"stream": stream, "events": 20_000, "bytes": path.stat().st_size - 20_000}
    assert_every_key_is_in_order(invoke("read", stream).stdout.splitlines(), 20_000)


def test_binary_and_large_events(invoke: Invoke, stream: str) -> None:
    binary = bytes(range(256)).replace(b"\n", b"")
    large = b"x" * (3 * 1024 * 1024)
    invoke("write", stream, "--key", "k", input=binary + b"\n" + large + b"\n")
    rows = [json.loads(line) for line in invoke("read", stream, "-o", "json").stdout.splitlines()]
    import base64

    assert base64.b64decode(rows[0]["event_base64"]) == binary
    assert rows[1]["event"] == large.decode()


def test_a_line_longer_than_an_event_is_refused(invoke: Invoke, stream: str) -> None:
    result = invoke("write", stream, input=b"ok\n" + b"y" * (8 * 1024 * 1024 + 1) + b"\n", code=2)
    assert "line 2 is longer than the 8388608 bytes of an event" in result.stderr


def test_a_line_without_the_key_field_is_refused(invoke: Invoke, stream: str) -> None:
    result = invoke("write", stream, "--key-field", "2", "-d", ",", input=b"a,b\nc\n", code=2)
    assert "a line has 1 fields, none is number 2" in result.stderr


def test_reading_ends_with_count_or_timeout(invoke: Invoke, stream: str) -> None:
    invoke("write", stream, "--key", "k", input=b"1\n2\n3\n")
    assert invoke("read", stream, "--count", "2").stdout == "1\n2\n"
    assert invoke("read", stream, "--timeout", "0.2").stdout == "1\n2\n3\n"
    result = invoke("read", stream, "--count", "4", "--timeout", "0.2", code=7)
    assert result.stdout == "1\n2\n3\n"
    assert "3 of 4 events" in result.stderr
    assert invoke("read", stream, "--from", "tail", "--timeout", "0.2").stdout == ""


def test_a_follower_gets_events_as_they_come(
    store: "Standalone", invoke: Invoke, stream: str
) -> None:
    command = [
        *(sys.executable, "-m", "pravega_admin", "read", stream, "--from", "tail"),
        *("--count", "3", "--controller", store.controller),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        # Begins at the tail at an unknown moment: feed it until it has seen something.
        first = ""
        while not first:
            invoke("write", stream, "--key", "k", input=b"first\n")
            import select

            if select.select([follower.stdout], [], [], 0.2)[0]:
                first = follower.stdout.readline()
        assert first == "first\n"
        invoke("stream", "scale", stream, "--segments", "4")
        for _ in range(2):
            invoke("write", stream, "--key", "k", input=b"next\n")
        rest, _ = follower.communicate(timeout=60)
        assert rest.splitlines()[-1] == "next"
        assert follower.returncode == 0


def test_whoever_closes_our_output_ends_the_reading(
    store: "Standalone", invoke: Invoke, stream: str
) -> None:
    invoke("write", stream, input=b"z" * 100 + b"\n" + keyed_lines(0, 20_000))
    command = (
        f"{sys.executable} -m pravega_admin read {stream} --controller {store.controller}"
        " | head -n 1; exit ${PIPESTATUS[0]}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


# ---- Transactions --------------------------------------------------------------------------------


@pytest.fixture
def begin(store: "Standalone", stream: str) -> Callable[[], str]:
    """Begin a transaction on the stream, as a client does; returns its id as clients print it."""
    from segstore_client.controller.controller_client import ControllerClient

    def run() -> str:
        scope, _, name = stream.partition("/")
        info = pb.StreamInfo(scope=scope, stream=name)
        request = pb.CreateTxnRequest(streamInfo=info, lease=60_000)
        with ControllerClient(store.controller) as client:
            begun = client._call("createTransaction", request, pb.CreateTxnResponse, scope, name)
        return str(UUID(bytes=id_of_halves(begun.txnId.highBits, begun.txnId.lowBits)))

    return run


def test_transactions_are_listed_and_ended(
    invoke: Invoke, stream: str, begin: Callable[[], str]
) -> None:
    assert json.loads(invoke("transaction", "list", stream, "-o", "json").stdout) == []
    first, second, third = begin(), begin(), begin()
    rows = json.loads(invoke("transaction", "list", stream, "-o", "json").stdout)
    assert [(row["id"], row["state"], row["epoch"]) for row in rows] == [
        (identifier, "open", 0) for identifier in sorted([first, second, third])
    ]
    assert all(row["lease_seconds"] == 60 and 0 <= row["age_seconds"] < 60 for row in rows)
    done = invoke("transaction", "commit", stream, first, "-o", "json")
    assert json.loads(done.stdout) == {"stream": stream, "id": first, "state": "committed"}
    assert "aborted" in invoke("transaction", "abort", stream, second).stderr
    # Once more is fine, and otherwise is not.
    invoke("transaction", "commit", stream, first)
    assert "is committed" in invoke("transaction", "abort", stream, first, code=6).stderr
    rows = json.loads(invoke("transaction", "list", stream, "-o", "json").stdout)
    assert [(row["id"], row["state"]) for row in rows] == [
        (third, "open"),
        (first, "committed"),
        (second, "aborted"),
    ]
    described = json.loads(invoke("transaction", "describe", stream, first, "-o", "json").stdout)
    assert (described["id"], described["state"]) == (first, "committed")
    assert "open" in invoke("transaction", "describe", stream, third).stdout
    assert third in invoke("transaction", "list", stream).stdout
    # In short, and those without an end of all streams.
    assert third in invoke("txn", "list", stream).stdout
    rows = json.loads(invoke("txn", "list", "-o", "json").stdout)
    assert [row["id"] for row in rows if row["stream"] == stream] == [third]
    assert all(row["lease_seconds"] for row in rows)
    invoke("txn", "abort", stream, third)
    assert third not in invoke("txn", "list").stdout


def test_transactions_that_are_not_there_are_told_so(invoke: Invoke, stream: str) -> None:
    unknown = str(UUID(int=2**128 - 1))
    for verb in ("describe", "commit", "abort"):
        assert "has no transaction" in invoke("transaction", verb, stream, unknown, code=3).stderr
        assert "is not the id" in invoke("transaction", verb, stream, "x", code=2).stderr
        assert "no transaction" in invoke("transaction", verb, "no/no", unknown, code=3).stderr
    assert "does not exist" in invoke("transaction", "list", "no/no", code=3).stderr


# ---- Key-value tables and reader groups ----------------------------------------------------------


def test_entries_of_tables_are_set_read_and_removed(invoke: Invoke, scope: str) -> None:
    table = f"{scope}/ages"
    lengths = ["--primary-key-bytes", "6", "--secondary-key-bytes", "3"]
    invoke("table", "create", table, "--partitions", "3", *lengths)

    def values(*options: str) -> list[tuple[str, str, str]]:
        rows = json.loads(invoke("table", "entries", table, *options, "-o", "json").stdout)
        return sorted((row["key"], row["secondary_key"], row["value"]) for row in rows)

    done = invoke("table", "put", table, "ann", "41", "--if-absent", "-o", "json")
    version = json.loads(done.stdout)["version"]
    assert (
        "has another version"
        in invoke("table", "put", table, "ann", "42", "--if-absent", code=6).stderr
    )
    invoke("table", "put", table, "ann", "42", "--if-version", str(version))
    invoke("table", "put", table, "bob", "-", "--secondary", "hex:00ff00", input=b"\xff\x00")
    invoke("table", "put", table, "hex:ffffffffffff", "hex:68657821", "--secondary", "end")
    assert values() == [
        ("ann", "", "42"),
        ("bob", "hex:00ff", "hex:ff00"),
        ("hex:ffffffffffff", "end", "hex!"),
    ]
    assert len(values("--count", "2")) == 2
    assert invoke("table", "get", table, "ann").stdout == "42\n"
    got = invoke("table", "get", table, "bob", "--secondary", "hex:00ff", "-o", "json").stdout
    assert json.loads(got)["value"] == "hex:ff00"

    assert "has no entry" in invoke("table", "get", table, "eve", code=3).stderr
    assert "have 6 bytes" in invoke("table", "get", table, "benjamin", code=2).stderr
    assert "not hexadecimal" in invoke("table", "get", table, "hex:x", code=2).stderr
    assert (
        "not both"
        in invoke(
            "table", "put", table, "ann", "1", "--if-absent", "--if-version", "1", code=2
        ).stderr
    )
    assert "does not exist" in invoke("table", "get", f"{table}x", "ann", code=3).stderr

    assert (
        "another version"
        in invoke("table", "remove", table, "ann", "--if-version", "7", code=6).stderr
    )
    invoke("table", "remove", table, "ann")
    invoke("table", "remove", table, "ann")
    assert [row[0] for row in values()] == ["bob", "hex:ffffffffffff"]


def test_entries_are_printed_page_by_page(
    invoke: Invoke, scope: str, store: "Standalone", monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"{scope}/many"
    invoke("table", "create", table, "--partitions", "2", "--primary-key-bytes", "4")
    keys = [b"%04d" % number for number in range(60)]
    with ControllerClient(store.controller) as controller:
        filled = BlockingTable(controller, scope, "many", patience=60)
        for key in keys:
            filled.put(key, b"v" * 5)
    ask = BlockingTable._ask
    printed = []

    def note_and_ask(self: BlockingTable, request: TableRequest) -> TableReply:
        sys.stdout.flush()
        printed.append(sys.stdout.buffer.tell())
        return ask(self, request)

    monkeypatch.setattr(table_steps, "PAGE_ENTRIES", 10)
    monkeypatch.setattr(output, "WIDTH_ROWS", 10)
    monkeypatch.setattr(BlockingTable, "_ask", note_and_ask)
    for form in ("json", "yaml", "csv", "table"):
        printed.clear()
        text = invoke("table", "entries", table, "-o", form).stdout
        # Behind the first page each one is printed before the next is asked for.
        assert len(printed) > 6
        assert printed[2] > 0
        assert len({*printed[2:]}) >= len(keys) // 10 - 2, form
        assert sorted(re.findall(r"\b\d{4}\b", text)) == [key.decode() for key in keys], form
    assert len(json.loads(invoke("table", "entries", table, "-o", "json").stdout)) == len(keys)


def test_tables_are_made_listed_described_and_deleted(invoke: Invoke, stream: str) -> None:
    scope = stream.partition("/")[0]
    table = f"{scope}/accounts"
    lengths = ["--primary-key-bytes", "8", "--secondary-key-bytes", "4"]
    invoke("table", "create", table, "--partitions", "3", *lengths)
    assert "exists already" in invoke("table", "create", table, code=4).stderr
    rows = json.loads(invoke("table", "list", scope, "-o", "json").stdout)
    assert rows == [{"scope": scope, "table": "accounts"}]
    assert rows[0] in json.loads(invoke("table", "list", "-o", "json").stdout)
    found = json.loads(invoke("table", "describe", table, "-o", "json").stdout)
    assert (found["partitions"], found["primary_key_bytes"], found["secondary_key_bytes"]) == (
        3,
        8,
        4,
    )
    assert "deleted" in invoke("table", "delete", table).stderr
    assert "does not exist" in invoke("table", "delete", table, code=3).stderr
    assert "SCOPE/TABLE" in invoke("table", "describe", "accounts", code=2).stderr
    assert json.loads(invoke("table", "list", scope, "-o", "json").stdout) == []


def test_reader_groups_are_listed_described_and_deleted(
    invoke: Invoke, store: "Standalone", scope: str
) -> None:
    from segstore_client.controller.controller_client import ControllerClient

    stream = f"{scope}/read"
    invoke("stream", "create", stream)
    invoke("write", stream, input=b"four\nfour\n")
    cut = pb.StreamCut(streamInfo=pb.StreamInfo(scope=scope, stream="read"), cut={0: 12})
    request = pb.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName="readers",
        retentionType=2,
        readerGroupId="11111111-2222-3333-4444-555555555555",
        startingStreamCuts=[cut],
        endingStreamCuts=[pb.StreamCut(streamInfo=cut.streamInfo)],
    )
    with ControllerClient(store.controller) as client:
        client._call("createReaderGroup", request, pb.CreateReaderGroupResponse, scope)
    rows = json.loads(invoke("group", "list", scope, "-o", "json").stdout)
    assert rows == [{"scope": scope, "group": "readers"}]
    found = json.loads(invoke("group", "describe", f"{scope}/readers", "-o", "json").stdout)
    assert found["id"] == request.readerGroupId
    assert found["retention"] == "checkpoints"
    assert (found["from"], found["to"]) == ([f"{stream} at 0:12"], [f"{stream} unbounded"])
    assert "deleted" in invoke("group", "delete", f"{scope}/readers").stderr
    assert "does not exist" in invoke("group", "describe", f"{scope}/readers", code=3).stderr


def test_a_port_of_the_other_kind_is_named(store: "Standalone", invoke: Invoke) -> None:
    controller = f"127.0.0.1:{store.controller_port}"
    segment_store = f"127.0.0.1:{store.segment_store_port}"
    told = invoke("check", "segment-store", controller, code=5).stderr
    assert told == f"segstore: {controller} is a controller's port, not a segment store's\n"
    told = invoke("check", "controller", segment_store, code=5).stderr
    assert told == f"segstore: {segment_store} is a segment store's port, not a controller's\n"
    told = invoke("scope", "list", "--controller", segment_store, code=5).stderr
    wrong = f"no controller answers at {segment_store}: {segment_store} is a segment store's port"
    assert told == f"segstore: {wrong}\n"


@pytest.mark.proof
def test_a_port_of_another_protocol_is_no_segment_stores(invoke: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            for _ in range(2):
                peer, _ = listener.accept()
                with peer:
                    peer.recv(1)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        server = threading.Thread(target=answer, daemon=True)
        server.start()
        told = invoke("check", "segment-store", address, code=5).stderr
    assert told.startswith(f"segstore: {address} is not a segment store's port: ")


@pytest.fixture
def interrupted(store: "Standalone", invoke: Invoke, stream: str) -> Iterator[Interrupted]:
    """A ``segstore write`` of an endless source, after its first events were stored."""
    source = subprocess.Popen(["yes", "a line of some length"], stdout=subprocess.PIPE)
    command = [sys.executable, "-m", "pravega_admin", "write", stream, "-c", store.controller]
    writer = subprocess.Popen(command, stdin=source.stdout, stderr=subprocess.PIPE, text=True)
    assert source.stdout is not None
    source.stdout.close()
    try:
        invoke("read", stream, "--count", "1", "--timeout", "60")
        yield source, writer
    finally:
        for process in (source, writer):
            process.kill()
            process.wait()
        assert writer.stderr is not None
        writer.stderr.close()


def test_ctrl_c_stores_what_was_read_and_tells_the_exact_number(
    interrupted: Interrupted, invoke: Invoke, stream: str
) -> None:
    # A terminal sends it to all processes of a pipe.
    for process in interrupted:
        process.send_signal(signal.SIGINT)
    _, told = interrupted[1].communicate(timeout=60)
    assert interrupted[1].returncode == 130
    events = invoke("read", stream).stdout.splitlines()
    assert set(events) == {"a line of some length"}
    assert told.splitlines()[-1] == f"{len(events)} events were stored"


def test_a_second_ctrl_c_tells_how_many_events_there_can_be(
    store: "Standalone", interrupted: Interrupted, invoke: Invoke, stream: str
) -> None:
    pause_process(store.pid_of("segment-store-0"))
    try:
        interrupted[1].send_signal(signal.SIGINT)
        assert interrupted[1].stderr is not None
        interrupted[0].kill()
        deadline = time.monotonic() + 60
        while interrupted[1].poll() is None:
            assert time.monotonic() < deadline, "Ctrl-C does not end it"
            interrupted[1].send_signal(signal.SIGINT)
            time.sleep(0.05)
        *_, told = interrupted[1].stderr.read().splitlines()
    finally:
        os.kill(store.pid_of("segment-store-0"), signal.SIGCONT)
    bounds = re.fullmatch(r"at least (\d+), at most (\d+) events were stored", told)
    assert bounds is not None, told
    assert int(bounds[1]) <= len(invoke("read", stream).stdout.splitlines()) <= int(bounds[2])


@pytest.mark.proof
def test_a_segment_store_that_stands_still_is_named_soon(
    store: "Standalone", invoke: Invoke, scope: str, stream: str
) -> None:
    """The controller lives, and waits for the store; twelve seconds are meant."""
    pause_process(store.pid_of("segment-store-0"))
    try:
        for command in (("stream", "list", scope), ("read", stream)):
            began = time.monotonic()
            said = invoke(*command, code=5)
            assert f"segment store 127.0.0.1:{store.segment_store_port} does not answer" in (
                said.stderr
            )
            assert time.monotonic() - began < 60
    finally:
        os.kill(store.pid_of("segment-store-0"), signal.SIGCONT)
