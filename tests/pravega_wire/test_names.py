"""Names of segments and the rules for names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.names import (
    NAME_RULE,
    USER_NAME_RULE,
    InvalidNameError,
    SegmentName,
    container_of,
    is_transaction_segment,
    is_transient_segment,
    mark_stream,
    parent_segment_name,
    parse_segment_name,
    primary_segment_name,
    reader_group_stream,
    scoped_name,
    segment_epoch,
    segment_id,
    segment_name,
    segment_number,
    table_name,
    transaction_epoch,
    transaction_segment_name,
    transient_segment_name,
    validate_name,
    validate_user_name,
)

ID = bytes.fromhex("00000007000000010000000000000002")
INT32 = st.integers(0, 2**31 - 1)
NAMES = st.from_regex(r"_?[A-Za-z0-9.\-]{1,20}", fullmatch=True)


@given(INT32, INT32)
def test_a_segment_id_holds_number_and_epoch(number: int, epoch: int) -> None:
    identifier = segment_id(number, epoch)
    assert 0 <= identifier < 2**63
    assert segment_number(identifier) == number
    assert segment_epoch(identifier) == epoch


@pytest.mark.parametrize(("number", "epoch"), [(-1, 0), (0, -1), (2**31, 0), (0, 2**31)])
def test_a_segment_id_of_other_numbers_is_refused(number: int, epoch: int) -> None:
    with pytest.raises(InvalidNameError):
        segment_id(number, epoch)


@given(NAMES, NAMES, INT32, INT32, st.binary(min_size=16, max_size=16))
def test_segment_names_read_back(
    scope: str, stream: str, number: int, epoch: int, identifier: bytes
) -> None:
    name = segment_name(scope, stream, segment_id(number, epoch))
    assert name == f"{scope}/{stream}/{number}.#epoch.{epoch}"
    assert parse_segment_name(name) == SegmentName(scope, stream, number, epoch)
    transaction = transaction_segment_name(name, identifier)
    assert parse_segment_name(transaction) == SegmentName(
        scope, stream, number, epoch, transaction_id=identifier
    )
    transient = transient_segment_name(name, identifier, bytes(16))
    parsed = parse_segment_name(transient)
    assert parsed == SegmentName(scope, stream, number, epoch, writer_id=identifier)
    assert parsed.segment_id == segment_id(number, epoch)
    assert parent_segment_name(transaction) == parent_segment_name(transient) == name
    assert parent_segment_name(name) is None
    assert is_transaction_segment(transaction)
    assert not is_transaction_segment(transient)
    assert is_transient_segment(transient)
    assert not is_transient_segment(transaction)
    primary = f"{scope}/{stream}/{number}"
    assert {primary_segment_name(each) for each in (name, transaction, transient)} == {primary}
    assert len({container_of(each, 16) for each in (name, transaction, transient, primary)}) == 1


def test_a_name_without_scope_or_epoch_is_read() -> None:
    assert parse_segment_name("stream/3") == SegmentName("", "stream", 3, 0)
    assert parse_segment_name("scope/stream/3") == SegmentName("scope", "stream", 3, 0)
    assert segment_name("", "stream", 3) == "stream/3.#epoch.0"
    assert scoped_name("", "stream") == "stream"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "stream",
        "scope/stream",
        "a/b/c/0.#epoch.0",
        "scope/stream/x.#epoch.0",
        "scope/stream/0.#epoch.",
        "scope/stream/0.#epoch.0#transaction.12",
        "scope/stream/0.#epoch.0#index",
        "scope/stream/2147483648.#epoch.0",
        "scope/stream/\u0663.#epoch.0",
        "_system/_tables/counter",
        "scope/stream/0.#epoch.0\n",
    ],
)
def test_what_is_no_stream_segments_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError):
        parse_segment_name(name)


def test_an_incomplete_transaction_suffix_is_part_of_the_name() -> None:
    name = "scope/stream/0.#epoch.0#transaction.0123"
    assert parent_segment_name(name) is None
    assert primary_segment_name(name) == "scope/stream/0"


def test_the_primary_name_is_cut_at_the_last_epoch() -> None:
    assert primary_segment_name("a/b.#epoch.1/0.#epoch.2#index") == "a/b.#epoch.1/0"
    nested = transaction_segment_name(transaction_segment_name("a/b/0.#epoch.1", ID), ID)
    assert primary_segment_name(nested) == "a/b/0"


def test_a_transactions_epoch_is_the_upper_half_of_its_first_half() -> None:
    assert transaction_epoch(ID) == 7


@pytest.mark.parametrize(
    ("name", "containers"),
    [
        ("examples/test/0", (0, 0, 9)),
        ("examples/test/1", (1, 1, 1)),
        ("scope/stream/0", (3, 3, 3)),
        ("_system/_requeststream/0", (1, 4, 4)),
        ("scope/stream/0.#epoch.12", (3, 3, 3)),
        ("scope/stream/0.#epoch.12#transaction." + ID.hex(), (3, 3, 3)),
        ("_system/containers/metadata_2", (2, 2, 2)),
        ("_system/containers/storage_metadata_3", (3, 3, 3)),
    ],
)
def test_segments_map_to_containers_as_everywhere(
    name: str, containers: tuple[int, int, int]
) -> None:
    assert tuple(container_of(name, count) for count in (4, 8, 16)) == containers


@given(st.text(st.characters(codec="utf-8")), st.integers(1, 1000))
def test_any_name_has_a_container(name: str, container_count: int) -> None:
    assert 0 <= container_of(name, container_count) < container_count


def test_names_of_internal_streams_and_tables() -> None:
    assert reader_group_stream("group") == "_RGgroup"
    assert mark_stream("stream") == "_MARKstream"
    assert table_name("_system", "counter") == "_system/_tables/counter"
    assert table_name("scope", "a", "b") == "scope/_tables/a/b"


RULES = (validate_user_name, validate_name)


@pytest.mark.parametrize("name", ["a", "A.b-9", "...", ".a", "a.", "..a", "-", "9", "x" * 250])
def test_plain_names_are_allowed_everywhere(name: str) -> None:
    for validate in RULES:
        assert validate(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a b", "a/b", "a_b", "__a", "a\n", ".\n", "\u00e9", "a#", "x" * 256, "_"],
)
def test_other_names_are_refused_everywhere_with_the_rule(name: str) -> None:
    for validate, rule in zip(RULES, (USER_NAME_RULE, NAME_RULE), strict=True):
        with pytest.raises(InvalidNameError) as refusal:
            validate(name)
        assert str(refusal.value).endswith(f"cannot be a name: {rule}")
        assert len(str(refusal.value)) < 250


@pytest.mark.parametrize("name", ["_RGgroup", "_.", "_.."])
def test_an_underscore_marks_internal_names(name: str) -> None:
    assert validate_name(name) == name
    with pytest.raises(InvalidNameError):
        validate_user_name(name)


def test_user_names_leave_room_for_a_prefix() -> None:
    with pytest.raises(InvalidNameError):
        validate_user_name("x" * 251)
    assert validate_name("x" * 255)
