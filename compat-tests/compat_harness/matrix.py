"""The documents of the compatibility tests: ``python -m compat_harness.matrix [FILE...]``.

Owns: merging lines of results into ``docs/compatibility.jsonl``, and ``docs/compatibility.md`` and
``docs/rpc-coverage.md``, which are made of nothing but that file and of ``controller.proto``.
``--check`` changes nothing and fails if a document is not what would be made.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from compat_harness.java import suites
from compat_harness.results import (
    Outcome,
    Result,
    ServerName,
    merge_results,
    read_results,
    write_results,
)
from compat_harness.secure import SECURE_API, WHY_NOT_ORIGINAL
from compat_harness.suite_groups import ONLY_OURS

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "docs" / "compatibility.jsonl"
MATRIX = ROOT / "docs" / "compatibility.md"
COVERAGE = ROOT / "docs" / "rpc-coverage.md"
PROTO = ROOT / "src" / "pravega_wire" / "controller.proto"

HEAD = """\
# Compatibility

Official clients against segstore, and the same tests against the original: Pravega's standalone
server 0.13.0. A test that fails there asks for the wrong thing, or for more than that one gives.

This page is generated from [compatibility.jsonl](compatibility.jsonl) by `make compat-full`, which
runs every test with every version on both servers. Cells count tests: passed of run, on segstore,
then on the original.

| | |
| --- | --- |
| `5 of 5 · 5 of 5` | all passed on both |
| `4 of 5 · 4 of 5` | nothing fails on segstore that passes on the original: see below |
| **`4 of 5 · 5 of 5`** | segstore fails what the original passes |
| `5 of 5 · –` | not run on the original, see below |
| not in this version | the client does not have the API, or not as servers of 0.13 know it |
| not run | it does, and nobody has run the tests yet |
"""

COVERAGE_HEAD = """\
# RPCs of the controller

The RPCs that Pravega 0.13.0 has, the API of an official client that reaches each, and a test that
does. A proxy between client and controller notes the calls that are answered with success while a
test runs; the results are the test's. Generated, like [compatibility.md](compatibility.md), from
[compatibility.jsonl](compatibility.jsonl).

| RPC | API | a test that reaches it | tests | segstore | original |
| --- | --- | --- | --- | --- | --- |
"""

NOT_TO_BE_HAD = {
    "Flink connectors for Flink 1.12 and later": "only 0.9.0 for Flink 1.11 is on Maven Central",
    "Spark connector of the original": "not on Maven Central; this project has its own",
    "Hadoop connector": "not on Maven Central",
    "Kafka adapter": "not on Maven Central",
    "sensor collector": "not on Maven Central",
    "OpenMessaging Benchmark": (
        "not on Maven Central: its users build it, and its calls are a suite of the Java client"
    ),
}
"""Clients that were looked for, and cannot be tested from a registry's packages (November 2026)."""

CUT_DIFFERENCES = {
    "-1": (
        "offset -1: the end of a sealed segment, as in positions of the Java client, and refused "
        "for any other segment. The original takes it for a segment that has not begun: it refuses "
        "a cut that has only such offsets with an index out of bounds, and never ends a truncation "
        "at a cut that also has others"
    ),
    "beyond": (
        "an offset beyond the end of a segment: refused. The original takes it, and what is "
        "written up to there is lost"
    ),
    "partly read": (
        "a cut behind a segment for some of its keys only: refused. The original takes it, and a "
        "reader that begins there waits for ever, because the client begins a segment when all of "
        "its predecessors are read"
    ),
}
"""The kinds of stream cuts that the original answers otherwise (``test_cuts.py``)."""

DIFFERENCES = (
    "The status of a transaction whose stream was deleted is unknown (`NOT_FOUND` in Java): "
    "nothing is kept of a stream that is gone. The original keeps outcomes for a day and answers "
    "`ABORTED` or `COMMITTED`; to say `ABORTED` of all would be false.",
    "A question about the segments after one of an earlier stream of the name is answered with "
    "`NOT_FOUND`. The original says that there are none, after which a reader ends as if the "
    "stream were sealed (`getSegmentsImmediatelyFollowing`).",
    "Bounds of a reader group that are no cuts of their streams are refused with a sentence. The "
    "original takes any, and the group's readers wait for ever or skip events (`createReaderGroup`,"
    " `updateReaderGroup`).",
    "A writer's position beyond the tail: the watermark's cut ends at the tail. The original's lies"
    " beyond it, where no reader gets, so that the time of readers stands still.",
    "A conditional put with a version on a key that is not there: `NoSuchKeyException`, as the "
    "documentation of `KeyValueTable` says. The original answers `BadKeyVersionException`.",
    "`listCompletedTransactions`: the transactions that were committed or aborted last, as the "
    "documentation of `Controller` says. The original's list stays empty until its next batch.",
)
"""Other decided differences, where the client's documentation or its source is the judge."""

NOT_REACHED = {
    "getControllerToBucketMapping": "no client has it: the original's administration tool alone",
    "getSegmentsImmediatlyFollowing": (
        "the misspelt name, kept for earlier clients; those tested use the other"
    ),
    "isStreamCutValid": "no client calls it: the original's REST server alone",
}
"""The RPCs that no test of an official client reaches, each with the reason."""


def make_matrix(results: Sequence[Result]) -> str:
    """Return the text of ``docs/compatibility.md``."""
    parts = [HEAD]
    for client in sorted({result.client for result in results}):
        parts.append(
            f"## {client}\n\n{_table([each for each in results if each.client == client])}"
        )
    judged = [result for result in results if not result.race]
    parts.append(_listing("Where segstore fails what the original passes", regressions(judged)))
    parts.append(_listing("What fails on the original", _failures(judged, ServerName.ORIGINAL)))
    title = "What fails on segstore and was not run on the original"
    parts.append(_listing(title, uncompared_failures(judged)))
    parts.append(_races([result for result in results if result.race]))
    reasons = "".join(f"- `{suite}`: {why}\n" for suite, why in ONLY_OURS.items())
    reasons += f"- {SECURE_API}: {WHY_NOT_ORIGINAL}\n"
    parts.append(f"## Not run on the original\n\n{reasons}")
    decided = "".join(f"- Stream cuts, {why}.\n" for why in CUT_DIFFERENCES.values())
    decided += "".join(f"- {each}\n" for each in DIFFERENCES)
    parts.append(f"## Decided differences from the original\n\n{decided}")
    missing = "".join(f"- {client}: {why}\n" for client, why in NOT_TO_BE_HAD.items())
    parts.append(f"## Not to be had\n\n{missing}")
    return "\n".join(parts)


def make_coverage(results: Sequence[Result], rpcs: Sequence[str]) -> str:
    """Return the text of ``docs/rpc-coverage.md``."""
    reached: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        for rpc in result.calls:
            reached[rpc].append(result)
    outcomes = _outcomes(results)
    lines = [COVERAGE_HEAD]
    for rpc in rpcs:
        tests = [result for result in reached[rpc] if result.server is ServerName.OURS]
        if not tests:
            lines.append(f"| `{rpc}` | | {NOT_REACHED.get(rpc, 'not reached')} | 0 | | |\n")
            continue
        # The most telling one: it passes on both, and reaches little else.
        best = min(tests, key=lambda each: (_doubt(each, outcomes), len(each.calls), each.key))
        theirs = outcomes.get((*best.key[:4], ServerName.ORIGINAL))
        lines.append(
            f"| `{rpc}` | {best.api} | `{best.suite}.{best.test}` | {len(tests)} | {best.result} |"
            f" {theirs or 'not run'} |\n"
        )
    served = sum(1 for rpc in rpcs if reached[rpc])
    lines.append(f"\n{served} of {len(rpcs)} RPCs are reached by official clients.\n")
    return "".join(lines)


def _doubt(result: Result, outcomes: dict[tuple[str, ...], Outcome]) -> int:
    """Count on how many of the two servers the test did not pass."""
    return sum(
        outcomes.get((*result.key[:4], server)) is not Outcome.PASSED for server in ServerName
    )


def read_rpcs(proto: str) -> list[str]:
    """Read the names of the RPCs that a protocol file declares, in its order."""
    return re.findall(r"^\s*rpc (\w+)\(", proto, flags=re.MULTILINE)


def regressions(results: Iterable[Result]) -> list[Result]:
    """Return tests that fail on segstore and pass on the original."""
    return _list_failures(results, Outcome.PASSED)


def uncompared_failures(results: Iterable[Result]) -> list[Result]:
    """Return tests that fail on segstore and were not run on the original."""
    return _list_failures(results, None)


def _list_failures(results: Iterable[Result], theirs: Outcome | None) -> list[Result]:
    """Return tests that fail on segstore and have this outcome on the original."""
    results = list(results)
    outcomes = _outcomes(results)
    return [
        result
        for result in _failures(results, ServerName.OURS)
        if outcomes.get((*result.key[:4], ServerName.ORIGINAL)) == theirs
    ]


def _failures(results: Iterable[Result], server: ServerName) -> list[Result]:
    return [
        result for result in results if result.server is server and result.result is Outcome.FAILED
    ]


def _outcomes(results: Iterable[Result]) -> dict[tuple[str, ...], Outcome]:
    return {result.key: result.result for result in results}


def _table(results: Sequence[Result]) -> str:
    versions = sorted({result.version for result in results}, key=_version_key, reverse=True)
    cells: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        if not result.race:
            cells[result.api, result.version].append(result)
    head = f"| API | {' | '.join(versions)} |\n|{' --- |' * (len(versions) + 1)}\n"
    rows = []
    for api in sorted({result.api for result in results if not result.race}):
        tests = {result.suite for result in results if result.api == api}
        row = [
            _cell(cells[api, version]) or _say_why_not(results[0].client, version, tests)
            for version in versions
        ]
        rows.append(f"| {api} | {' | '.join(row)} |\n")
    return head + "".join(rows)


def _say_why_not(client: str, version: str, tests: set[str]) -> str:
    """Return why there is no result: the version has no such suites, or nobody ran them.

    A module of pytest, such as that of tests over TLS, is not about one version.
    """
    is_ours = any(test.startswith("test_") for test in tests)
    lacks = client == "Java" and not is_ours and not tests & set(suites(version))
    return "not in this version" if lacks else "not run"


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _cell(results: Sequence[Result]) -> str:
    if not results:
        return ""
    counts = []
    for server in (ServerName.OURS, ServerName.ORIGINAL):
        run = [each for each in results if each.server is server]
        run = [each for each in run if each.result is not Outcome.SKIPPED]
        passed = sum(1 for each in run if each.result is Outcome.PASSED)
        counts.append(f"{passed} of {len(run)}" if run else "–")
    text = f"{counts[0]} · {counts[1]}"
    return f"**{text}**" if regressions(results) else text


def _listing(title: str, results: Sequence[Result]) -> str:
    lines = [
        f"- {each.client} {each.version}, {each.api}: `{each.suite}.{each.test}`:"
        f" {each.note or 'no reason was given'}\n"
        for each in results
    ]
    return f"## {title}\n\n{''.join(lines) or 'Nothing.' + chr(10)}"


def _races(results: Sequence[Result]) -> str:
    count: Callable[[ServerName, Outcome], int] = lambda server, outcome: sum(  # noqa: E731
        1 for each in results if each.server is server and each.result is outcome
    )
    text = (
        "Some tests meet a race inside the client: a reply that comes quickly finds a reader that\n"
        "is about to sleep. They are run and counted, and are no part of the verdict.\n\n"
        "| | passed | failed |\n| --- | --- | --- |\n"
    )
    for server in ServerName:
        passed, failed = count(server, Outcome.PASSED), count(server, Outcome.FAILED)
        text += f"| {server} | {passed} | {failed} |\n"
    return f"## Races inside the clients\n\n{text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Merge files of results and make the documents; 1 if one is red, or not up to date."""
    parser = argparse.ArgumentParser(prog="compat_harness.matrix", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="results to merge, in order")
    parser.add_argument("--check", action="store_true", help="only compare the documents")
    options = parser.parse_args(arguments)
    results = read_results(RESULTS)
    for path in options.files:
        results = merge_results(results, read_results(path))
    documents = {
        MATRIX: make_matrix(results),
        COVERAGE: make_coverage(results, read_rpcs(PROTO.read_text())),
    }
    if options.check:
        stale = [path for path, text in documents.items() if path.read_text() != text]
        for path in stale:
            print(f"{path.name} is not what {RESULTS.name} says", file=sys.stderr)
        return 1 if stale else 0
    write_results(RESULTS, results)
    for path, text in documents.items():
        path.write_text(text)
    print(documents[MATRIX])
    judged = [result for result in results if not result.race]
    return 1 if regressions(judged) or uncompared_failures(judged) else 0


if __name__ == "__main__":
    sys.exit(main())
