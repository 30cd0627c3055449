"""The page of the paper's figures says what is recorded of them."""

from __future__ import annotations

from benchmarks.paper import report
from benchmarks.paper.figures import POINTS
from benchmarks.record import read_record
from benchmarks.streams.report import PERFORMANCE


def test_the_page_follows_from_its_record() -> None:
    record = read_record(PERFORMANCE / report.RECORD, POINTS)
    text = (PERFORMANCE / report.PAGE).read_text("utf-8")
    assert text.startswith(report.page(record).rstrip()), "make bench-paper writes it anew"
