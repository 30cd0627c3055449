"""The places that read the wall clock: it may be set at any moment, so each has its reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src"
READS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "ctime"),
    ("time", "localtime"),
    ("time", "gmtime"),
    ("time", "strftime"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}
READS_PERHAPS = re.compile(
    r"\b(?:" + "|".join(rf"{owner}\.{name}" for owner, name in READS) + r")\b"
    r"|\bfrom time import\b|\bCLOCK_REALTIME\b"
)
"""Matches what may be a read; it may be in a sentence, too."""
MAY_READ = {
    "pravega_admin/commands/exports.py": "the time of an export, for people",
    "pravega_admin/commands/security/certificates.py": "until when certificates are valid",
    "pravega_admin/commands/security/tokens.py": "the ages of keys, for people",
    "pravega_admin/commands/transactions.py": "the age of a transaction, for people",
    "pravega_admin/inspection/machine_checks.py": "whether the clock is set",
    "pravega_admin/inspection/server_findings.py": "for how long certificates are valid",
    "pravega_admin/serving/security_files.py": "until when certificates are valid",
    "segstore_client/access/tokens.py": "until when a token is valid",
    "segstore_client/controller/controller_client.py": "a field of requests that no server uses",
    "segstore_client/cuts/places.py": "a time that people give as so long ago",
    "pravega_controller/clocks.py": "labels of records, by a clock that is not set",
    "pravega_metrics/process_metrics.py": "the gauge of a process's start, in seconds since 1970",
    "pravega_security/identity_provider/bearer.py": "until when a token is valid",
    "pravega_security/tls.py": "until when a certificate is valid",
    "pravega_spark/payloads/times_of_texts.py": "today, for a time without a date, as Spark",
    "segstore/repair/recover.py": "the name of a directory",
    "segstore/runtime/clock.py": "the times of creations and changes, and of requests for scaling",
}


def find_reads(text: str) -> list[str]:
    """Return the calls and names in a module by which it reads the wall clock."""
    found = []
    for node in ast.walk(ast.parse(text)) if READS_PERHAPS.search(text) else ():
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if (name, node.attr) in READS or node.attr == "CLOCK_REALTIME":
                found.append(f"{name}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [each.name for each in node.names if ("time", each.name) in READS]
    return found


def test_no_other_module_reads_the_wall_clock() -> None:
    reading = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if find_reads(path.read_text())
    }
    assert reading == MAY_READ.keys()


def test_extensions_read_no_wall_clock() -> None:
    texts = {path: path.read_text() for path in SOURCES.rglob("*.p[yx][xd]")}
    assert texts
    for path, text in texts.items():
        assert "CLOCK_REALTIME" not in text, path
        assert "gettimeofday" not in text, path


def test_each_way_to_read_it_is_found() -> None:
    assert find_reads("import time\nx = time.time\ny = time.monotonic()") == ["time.time"]
    assert find_reads("from time import monotonic, time_ns") == ["time_ns"]
    assert find_reads("import datetime\ndatetime.datetime.now()") == ["datetime.now"]
    assert find_reads("time.clock_gettime(time.CLOCK_REALTIME)") == ["time.CLOCK_REALTIME"]
