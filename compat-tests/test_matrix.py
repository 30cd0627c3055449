"""The documents of the compatibility tests: what they say, and that they are up to date."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from compat_harness import matrix
from compat_harness.results import (
    Outcome,
    Result,
    ServerName,
    append_results,
    merge_results,
    read_results,
)


def result(
    test: str = "one",
    *,
    server: ServerName = ServerName.OURS,
    outcome: Outcome = Outcome.PASSED,
    version: str = "0.13.0",
    api: str = "events",
    race: bool = False,
    calls: tuple[str, ...] = (),
) -> Result:
    return Result(
        server=server,
        client="Java",
        version=version,
        api=api,
        suite="SomeTest",
        test=test,
        result=outcome,
        race=race,
        calls=calls,
    )


def test_results_survive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    written = [result("one", calls=("createScope",)), result("two", outcome=Outcome.FAILED)]
    append_results(path, written)
    assert read_results(path) == written
    assert read_results(tmp_path / "none") == []


def test_a_suite_that_was_run_again_is_replaced_as_a_whole() -> None:
    known = [result("gone"), result("kept", version="0.9.0"), result("stays")]
    new = [result("stays", outcome=Outcome.FAILED)]
    merged = merge_results(known, new)
    assert [(each.test, each.result) for each in merged] == [
        ("stays", Outcome.FAILED),
        ("kept", Outcome.PASSED),
    ]


def test_a_cell_says_what_passed_on_both_servers() -> None:
    results = [
        result("one"),
        result("one", server=ServerName.ORIGINAL),
        result("two"),
        result("two", server=ServerName.ORIGINAL, outcome=Outcome.FAILED),
        result("only ours", version="0.9.0", api="scaling"),
    ]
    text = matrix.make_matrix(results)
    assert "| events | 2 of 2 · 1 of 2 | not in this version |" in text
    assert "| scaling | not in this version | 1 of 1 · – |" in text
    assert "`SomeTest.two`" in text


def test_what_a_version_lacks_is_told_from_what_nobody_ran() -> None:
    tables = msgspec.structs.replace(result(api="tables"), suite="KeyValueTableTest")
    groups = msgspec.structs.replace(result(api="groups"), suite="ReaderGroupTest")
    secure = msgspec.structs.replace(result(api="TLS and user"), suite="test_official_clients")
    text = matrix.make_matrix([tables, groups, secure, result(version="0.9.0")])
    assert "| TLS and user | 1 of 1 · – | not run |" in text
    assert "| tables | 1 of 1 · – | not in this version |" in text
    assert "| groups | 1 of 1 · – | not run |" in text


def test_a_cell_is_red_where_only_segstore_fails() -> None:
    results = [
        result("one", outcome=Outcome.FAILED),
        result("one", server=ServerName.ORIGINAL),
    ]
    assert "**0 of 1 · 1 of 1**" in matrix.make_matrix(results)
    assert matrix.regressions(results) == results[:1]
    # What fails on both is the test's fault.
    both = [results[0], result("one", server=ServerName.ORIGINAL, outcome=Outcome.FAILED)]
    assert matrix.regressions(both) == []
    assert matrix.uncompared_failures(both) == []
    assert matrix.uncompared_failures(results[:1]) == results[:1]


def test_races_are_counted_apart() -> None:
    results = [
        result("race", outcome=Outcome.FAILED, race=True),
        result("race", server=ServerName.ORIGINAL, race=True),
        result("one"),
    ]
    text = matrix.make_matrix(results)
    assert "| events | 1 of 1 · – |" in text
    assert "| segstore | 0 | 1 |" in text


def test_coverage_names_a_test_for_each_rpc_that_is_reached() -> None:
    results = [
        result("broad", calls=("createScope", "createStream")),
        result("narrow", calls=("createScope",)),
        result("narrow", server=ServerName.ORIGINAL, outcome=Outcome.FAILED),
    ]
    text = matrix.make_coverage(results, ["createScope", "createStream", "getURI"])
    assert "| `createScope` | events | `SomeTest.narrow` | 2 | passed | failed |" in text
    assert "| `createStream` | events | `SomeTest.broad` | 1 | passed | not run |" in text
    assert "| `getURI` | | not reached | 0 | | |" in text
    assert "2 of 3 RPCs" in text


def test_the_rpcs_are_those_of_the_protocol() -> None:
    rpcs = matrix.read_rpcs(matrix.PROTO.read_text())
    assert len(rpcs) == len(set(rpcs)) >= 46
    assert matrix.NOT_REACHED.keys() <= set(rpcs)


@pytest.mark.skipif(not matrix.RESULTS.exists(), reason="no results yet")
def test_the_documents_are_what_the_results_say() -> None:
    assert matrix.main(["--check"]) == 0


@pytest.mark.skipif(not matrix.RESULTS.exists(), reason="no results yet")
def test_no_cell_is_red() -> None:
    judged = [each for each in read_results(matrix.RESULTS) if not each.race]
    assert matrix.regressions(judged) == []
    assert matrix.uncompared_failures(judged) == []
