"""Data goes to stdout in the form asked for; progress only where somebody watches."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from pravega_admin.output.output import (
    WIDTH_ROWS,
    OutputFormat,
    print_fields,
    print_parts,
    print_rows,
    progress,
    report,
)
from segstore_client.errors import NotFoundError

ROWS = [
    {"scope": "a", "low_key": 1 / 3, "sealed": True, "tags": ["x", "y"], "length": None},
    {"scope": "longer", "low_key": 0.5, "sealed": False, "tags": [], "length": 7},
]


def test_a_table_lines_up_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, ["scope", "low_key", "sealed", "tags", "length"], OutputFormat.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "SCOPE   LOW KEY   SEALED  TAGS  LENGTH",
        "a       0.333333  yes     x, y  -",
        "longer  0.5       no      -     7",
    ]


def test_a_table_without_rows_still_names_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], ["scope", "stream"], OutputFormat.TABLE)
    assert capsys.readouterr().out == "SCOPE  STREAM\n"
    print_rows([], ["scope", "stream"], OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out) == []


def test_json_keeps_values_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, ["scope", "low_key"], OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out)[0] == {"scope": "a", "low_key": 1 / 3}
    print_fields({"name": "ümlaut"}, OutputFormat.JSON)
    assert "ümlaut" in capsys.readouterr().out


def test_yaml_has_the_values_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, ["scope", "length", "tags"], OutputFormat.YAML)
    rows = yaml.safe_load(capsys.readouterr().out)
    assert rows[1] == {"scope": "longer", "length": 7, "tags": []}
    print_parts({"scope": "a"}, {"segments": [{"id": 1}]}, OutputFormat.YAML)
    assert yaml.safe_load(capsys.readouterr().out) == {"scope": "a", "segments": [{"id": 1}]}


@pytest.mark.parametrize("output", list(OutputFormat))
def test_rows_are_printed_while_others_are_still_to_come(
    output: OutputFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"key": f"{n}\u2028", "tags": [n, "a\nb"]} for n in range(WIDTH_ROWS + 100)]
    print_rows(rows, ("key", "tags"), output)
    whole = capsys.readouterr().out
    came = list[str]()

    def come() -> Iterator[dict[str, Any]]:
        for row in rows:
            came.append(capsys.readouterr().out)
            yield row

    print_rows(come(), ("key", "tags"), output)
    assert "".join(came) + capsys.readouterr().out == whole
    # A row is printed before the next one is asked for, behind those that decide the widths.
    behind = [bool(each) for each in came[WIDTH_ROWS + 1 :]]
    assert behind == [True] * len(behind)
    print_rows(iter(()), ("key", "tags"), output)
    nothing = capsys.readouterr().out
    print_rows([], ("key", "tags"), output)
    assert nothing == capsys.readouterr().out


@pytest.mark.parametrize("output", list(OutputFormat))
def test_an_error_before_the_first_row_leaves_the_output_empty(
    output: OutputFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(count: int) -> Iterator[dict[str, Any]]:
        for number in range(count):
            yield {"key": number}
        raise NotFoundError("away")

    with pytest.raises(NotFoundError):
        print_rows(refuse(0), ("key",), output)
    assert capsys.readouterr().out == ""
    with pytest.raises(NotFoundError):
        print_rows(refuse(WIDTH_ROWS + 1), ("key",), output)
    printed = capsys.readouterr().out
    assert str(WIDTH_ROWS) in printed
    if output is OutputFormat.JSON:
        with pytest.raises(ValueError, match="delimiter"):
            json.loads(printed)


def test_csv_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, ["scope", "sealed", "tags", "length"], OutputFormat.CSV)
    assert capsys.readouterr().out.splitlines() == [
        "scope,sealed,tags,length",
        'a,true,"[""x"", ""y""]",',
        "longer,false,[],7",
    ]
    print_fields({"name": 'a,"b"', "count": 2}, OutputFormat.CSV)
    assert capsys.readouterr().out.splitlines() == ["name,count", '"a,""b""",2']
    # Of a thing with parts, the parts.
    print_parts({"scope": "a"}, {"segments": [{"id": 1}, {"id": 2}]}, OutputFormat.CSV)
    assert capsys.readouterr().out.splitlines() == ["id", "1", "2"]
    report("done", {"done": True}, OutputFormat.CSV)
    assert capsys.readouterr().out.splitlines() == ["done", "true"]


def test_what_was_done_is_a_note_unless_json_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report("done", {"done": True}, OutputFormat.TABLE)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "done\n")
    report("done", {"done": True}, OutputFormat.JSON)
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"done": True}
    assert captured.err == ""


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working", total=10, in_bytes=False) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


def run_on_terminal(source: str) -> tuple[bytes, str]:
    """Run a program whose stderr is a terminal; return its output, and what the terminal got."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", source],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
            check=True,
        )
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    return done.stdout, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


@pytest.mark.processes
@pytest.mark.parametrize("in_bytes", [True, False])
def test_progress_is_shown_on_a_terminal(in_bytes: bool) -> None:
    source = (
        "from pravega_admin.output.output import progress\n"
        f"with progress('working', total=10, in_bytes={in_bytes}) as advance:\n"
        "    advance(5)\n"
        "    print('data', flush=True)\n"
    )
    data, shown = run_on_terminal(source)
    assert "working" in shown
    assert data == b"data\n"


@pytest.mark.processes
def test_the_bar_of_a_job_goes_from_its_start_to_its_end() -> None:
    source = """
from pravega_admin.output.output import JobState, job_progress
import time
with job_progress('starting') as show:
    time.sleep(0.3)
    for done in (0.25, 0.75, 0.5):
        show(JobState('a -> b', f'{done} read', done, 1.0))
        time.sleep(0.3)
"""
    _, shown = run_on_terminal(source)
    parts = ["starting", "a -> b", "0.25 read", "0.75 read", "0.5 read"]
    assert sorted(parts, key=shown.index) == parts
