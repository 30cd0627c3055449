"""Checkpoints of a group: begun, reached by each reader, complete, cleared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.reader_groups.checkpoints import Checkpoints, is_silent

names = st.text(max_size=5)
offsets = st.dictionaries(names, st.integers(-1, 1 << 62), max_size=3)


def begun(*checkpoints: str) -> Checkpoints:
    found = Checkpoints()
    for name in checkpoints:
        found.begin(name, ["a", "b"], {"free": 5})
    return found


def test_a_checkpoint_is_complete_when_each_reader_has_reached_it() -> None:
    found = begun("x")
    assert (found.next_of("a"), found.next_of("c"), found.outstanding) == ("x", None, ["x"])
    found.reach("x", "a", {"one": 1})
    found.reach("x", "a", {"one": 2})
    found.reach("unknown", "a", {"one": 2})
    assert (found.next_of("a"), found.next_of("b"), found.last) == (None, "x", {})
    found.reach("x", "b", {"two": 2})
    assert found.last == {"free": 5, "one": 1, "two": 2}
    assert not found.is_published
    assert found.outstanding == []


def test_a_checkpoint_of_no_reader_is_complete_at_once() -> None:
    found = Checkpoints()
    found.begin("x", [], {"free": 5})
    found.begin("x", ["a"], {})
    assert (found.waiting, found.positions) == ({}, {"x": {"free": 5}})


def test_a_reader_that_goes_completes_the_checkpoints_that_wait_for_it() -> None:
    found = begun("x", "y")
    for name in ("x", "y"):
        found.reach(name, "a", {"one": 1})
    found.remove_reader("b", {"two": 7})
    assert found.waiting == {}
    assert found.positions["x"] == found.positions["y"] == {"free": 5, "one": 1, "two": 7}


def test_a_silent_checkpoint_is_not_the_last_one() -> None:
    found = begun("x_SILENT_")
    assert is_silent("x_SILENT_")
    assert found.outstanding == []
    for reader in ("a", "b"):
        found.reach("x_SILENT_", reader, {reader: 1})
    assert (found.last, found.is_published, found.waiting) == ({}, True, {})


def test_what_is_before_a_checkpoint_is_cleared() -> None:
    found = begun("x", "y", "z")
    found.clear_before("unknown")
    assert found.names == ["x", "y", "z"]
    found.clear_before("y")
    assert (found.names, list(found.waiting), list(found.positions)) == (
        ["y", "z"],
        ["y", "z"],
        ["y", "z"],
    )


def test_what_is_not_complete_is_dropped() -> None:
    found = begun("x", "silent_SILENT_")
    found.drop_outstanding()
    assert list(found.waiting) == ["silent_SILENT_"]
    assert list(found.positions) == ["silent_SILENT_"]


@given(
    st.builds(
        Checkpoints,
        st.lists(names, max_size=3),
        st.dictionaries(names, st.lists(names, max_size=3), max_size=3),
        st.dictionaries(names, offsets, max_size=3),
        offsets,
        st.booleans(),
    )
)
def test_they_are_read_as_they_were_written(found: Checkpoints) -> None:
    assert Checkpoints.decode(found.encode()) == found


def test_a_copy_changes_alone() -> None:
    found = begun("x")
    copy = found.copy()
    copy.reach("x", "a", {"one": 1})
    copy.begin("y", ["a"], {})
    assert found == begun("x")
