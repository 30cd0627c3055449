from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from segstore.tiers.doubtful_files import DoubtNotes


def test_the_last_note_of_a_file_counts(tmp_path: Path) -> None:
    notes = DoubtNotes(tmp_path / "doubts")
    assert notes.read() == {}
    notes.add("a b\n", 7)
    notes.add("c", 1)
    notes.add("a b\n", 5)
    assert notes.read() == {"a b\n": 5, "c": 1}
    notes.replace({"c": 1})
    assert notes.read() == {"c": 1}
    notes.replace({})
    assert list(tmp_path.iterdir()) == []


@given(st.integers(0, 40))
def test_a_note_that_was_not_written_whole_spoils_no_other(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "doubts"
        notes = DoubtNotes(path)
        notes.add("first", 7)
        whole = path.read_bytes()
        notes.add("second 2", 8)
        path.write_bytes(path.read_bytes()[: len(whole) + cut])
        assert notes.read() in ({"first": 7}, {"first": 7, "second 2": 8})
        notes.add("third", 9)
        assert {"first": 7, "third": 9}.items() <= notes.read().items()
