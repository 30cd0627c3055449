"""Operations are judged by everything accepted before them, durable or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.names import (
    NAME_LENGTH_MAX,
    USER_NAME_LENGTH_MAX,
    InvalidNameError,
    parse_segment_name,
    segment_name,
    transaction_segment_name,
    transient_segment_name,
    validate_name,
    validate_user_name,
)
from segstore.attributes.attribute_index import attribute_segment_name
from segstore.chunks.records import new_chunk_name
from segstore.durable_log.update_transaction import (
    NO_RECORD,
    AttributesNotLoadedError,
    PendingSegment,
    PendingState,
    resolve_updates,
)
from segstore.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO,
    ATTRIBUTE_SEGMENT_ROOT_POINTER,
    ATTRIBUTE_SEGMENT_TYPE,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
)
from segstore.model.metadata import ContainerMetadata, SegmentMetadata, storage_name
from segstore.model.operations import (
    AppendOperation,
    DeleteOperation,
    MapOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from segstore.network.handler_table import check_name
from segstore.tiers.chunk_paths import name_of, path_of
from segstore.tiers.s3.keys import KEY_BYTES_MAX, Piece, chunk_prefix, object_name
from segstore.tiers.s3.location import PREFIX_BYTES_MAX
from support.client_names import (
    segments_of_group,
    segments_of_stream,
    segments_of_table,
)

A, B = b"a" * 16, b"b" * 16
VERB = AttributeUpdateType


class Pipeline:
    """A pipeline that accepts operations, and commits them when told to."""

    def __init__(self) -> None:
        self.metadata = ContainerMetadata(1)
        self.pending = PendingState(self.metadata, lambda: 7, lambda name: NO_RECORD)
        self.in_flight: list[Operation] = []

    def accept(self, *operations: Operation) -> None:
        for operation in operations:
            self.pending.accept(operation)
            self.in_flight.append(operation)

    def commit(self, count: int | None = None) -> None:
        done, self.in_flight = self.in_flight[:count], self.in_flight[len(self.in_flight[:count]) :]
        for operation in done:
            self.metadata.apply(operation, 9)
            self.pending.committed(operation)


@pytest.fixture(params=["in flight", "durable"])
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    """A pipeline with the segment ``s`` of 10 bytes, before or after its operations commit."""
    pipeline = Pipeline()
    pipeline.accept(
        MapOperation("s", {A: 1}),
        AppendOperation("s", b"0123456789", updates=[AttributeUpdate(B, VERB.REPLACE, 5)]),
    )
    if request.param == "durable":
        pipeline.commit()
    return pipeline


def test_appends_get_offsets_in_order(pipeline: Pipeline) -> None:
    first, second = AppendOperation("s", b"xx"), AppendOperation("s", b"y")
    pipeline.accept(first, second)
    assert (first.offset, second.offset) == (10, 12)
    assert second.sequence_number == first.sequence_number + 1


def test_an_append_behind_a_seal_is_refused_before_the_seal_is_durable(pipeline: Pipeline) -> None:
    pipeline.accept(SealOperation("s"))
    with pytest.raises(SegmentSealedError):
        pipeline.pending.accept(AppendOperation("s", b"x"))
    with pytest.raises(SegmentSealedError):
        pipeline.pending.accept(SealOperation("s"))
    with pytest.raises(SegmentSealedError):
        pipeline.pending.accept(
            UpdateAttributesOperation("s", [AttributeUpdate(A, VERB.REPLACE, 1)])
        )


def test_a_refused_operation_leaves_no_trace(pipeline: Pipeline) -> None:
    number = pipeline.pending.last_sequence_number
    good_then_bad = [
        AttributeUpdate(A, VERB.REPLACE, 99),
        AttributeUpdate(B, VERB.REPLACE_IF_EQUALS, 1, 4),
    ]
    with pytest.raises(BadAttributeUpdateError):
        pipeline.pending.accept(AppendOperation("s", b"x", updates=good_then_bad))
    with pytest.raises(BadOffsetError) as failure:
        pipeline.pending.accept(AppendOperation("s", b"x", expected_offset=11))
    assert (failure.value.expected, failure.value.actual) == (11, 10)
    assert pipeline.pending.last_sequence_number == number
    probe = AppendOperation("s", b"x", updates=[AttributeUpdate(A, VERB.REPLACE_IF_EQUALS, 2, 1)])
    pipeline.accept(probe)
    assert probe.offset == 10


def test_attribute_conditions_are_judged_before_the_offset(pipeline: Pipeline) -> None:
    wrong = [AttributeUpdate(A, VERB.REPLACE_IF_EQUALS, 2, 17)]
    with pytest.raises(BadAttributeUpdateError):
        pipeline.pending.accept(AppendOperation("s", b"", updates=wrong, expected_offset=999))


def test_nothing_pending_shows_in_the_metadata() -> None:
    pipeline = Pipeline()
    pipeline.accept(MapOperation("s", {}), AppendOperation("s", b"x"), SealOperation("s"))
    assert not pipeline.metadata.by_name
    pipeline.commit(2)
    assert pipeline.metadata.by_name["s"].length == 1
    assert not pipeline.metadata.by_name["s"].sealed
    pipeline.commit()
    assert pipeline.metadata.by_name["s"].sealed


def test_a_name_can_be_deleted_and_created_again_in_flight(pipeline: Pipeline) -> None:
    with pytest.raises(SegmentExistsError):
        pipeline.pending.accept(MapOperation("s", {}))
    pipeline.accept(DeleteOperation("s"))
    with pytest.raises(NoSuchSegmentError):
        pipeline.pending.accept(AppendOperation("s", b"x"))
    again, append = MapOperation("s", {}), AppendOperation("s", b"x")
    pipeline.accept(again, append)
    assert append.offset == 0
    assert append.segment_id == again.segment_id
    pipeline.commit()
    assert pipeline.metadata.by_name["s"].length == 1
    assert pipeline.pending.segments == {}
    assert pipeline.pending._names == {}


def test_a_merge_takes_the_source_away_and_adds_its_event_count(pipeline: Pipeline) -> None:
    events = [AttributeUpdate(EVENT_COUNT, VERB.ACCUMULATE, 3)]
    merge = MergeOperation("s", "t")
    pipeline.accept(
        MapOperation("t", {}),
        AppendOperation("t", b"abc", updates=events),
        AppendOperation("s", b"", updates=events),
        merge,
    )
    assert (merge.offset, merge.length) == (10, 3)
    with pytest.raises(NoSuchSegmentError):
        pipeline.pending.accept(AppendOperation("t", b"x"))
    follow = AppendOperation("s", b"x")
    pipeline.accept(follow)
    assert follow.offset == 13
    pipeline.commit()
    assert pipeline.metadata.by_name["s"].attributes[EVENT_COUNT] == 6
    assert "t" not in pipeline.metadata.by_name


def test_merges_that_make_no_sense_are_refused(pipeline: Pipeline) -> None:
    pipeline.accept(MapOperation("t", {}), AppendOperation("t", b"abc"), TruncateOperation("t", 1))
    with pytest.raises(SegmentTruncatedError) as truncated:
        pipeline.pending.accept(MergeOperation("s", "t"))
    assert truncated.value.segment == "t"
    with pytest.raises(InvalidRequestError):
        pipeline.pending.accept(MergeOperation("s", "s"))
    with pytest.raises(NoSuchSegmentError):
        pipeline.pending.accept(MergeOperation("s", "nothing"))
    pipeline.accept(SealOperation("s"), MapOperation("u", {}))
    with pytest.raises(SegmentSealedError) as sealed:
        pipeline.pending.accept(MergeOperation("s", "u"))
    assert sealed.value.segment == "s"


def test_a_merge_whose_event_count_leaves_64_bits_is_refused(pipeline: Pipeline) -> None:
    """It could not be written to the log, and the container would end for it."""
    many = [AttributeUpdate(EVENT_COUNT, VERB.REPLACE, 2**63 - 1)]
    one = [AttributeUpdate(EVENT_COUNT, VERB.ACCUMULATE, 1)]
    pipeline.accept(
        MapOperation("t", {}),
        UpdateAttributesOperation("t", many),
        AppendOperation("s", b"", updates=one),
    )
    with pytest.raises(InvalidRequestError):
        pipeline.pending.accept(MergeOperation("s", "t"))
    pipeline.commit()
    assert pipeline.metadata.by_name["s"].attributes[EVENT_COUNT] == 1
    assert "t" in pipeline.metadata.by_name


@pytest.mark.parametrize("offset", [-1, 11])
def test_a_truncation_stays_within_the_segment(pipeline: Pipeline, offset: int) -> None:
    with pytest.raises(SegmentTruncatedError):
        pipeline.pending.accept(TruncateOperation("s", offset))
    pipeline.accept(TruncateOperation("s", 10), TruncateOperation("s", 10))
    with pytest.raises(SegmentTruncatedError) as failure:
        pipeline.pending.accept(TruncateOperation("s", 9))
    assert failure.value.start_offset == 10


PRESENT = st.none() | st.integers(-5, 5)


def resolve(present: int | None, update: AttributeUpdate) -> int:
    segment = SegmentMetadata(1, "s")
    if present is not None:
        segment.attributes[A] = present
    return resolve_updates(PendingSegment(segment), [update])[A]


@given(PRESENT, st.sampled_from(VERB), st.integers(-5, 5), st.integers(-5, 5))
def test_the_verbs_do_what_the_original_says(
    present: int | None, verb: AttributeUpdateType, value: int, expected: int
) -> None:
    allowed = {
        VERB.NONE: present is None,
        VERB.REPLACE: True,
        VERB.REPLACE_IF_GREATER: present is None or value > present,
        VERB.ACCUMULATE: True,
        VERB.REPLACE_IF_EQUALS: present == expected,
    }[verb]
    update = AttributeUpdate(A, verb, value, expected)
    if not allowed:
        with pytest.raises(BadAttributeUpdateError) as failure:
            resolve(present, update)
        assert failure.value.previous_value_missing == (present is None)
        return
    after = value + (present or 0) if verb == VERB.ACCUMULATE else value
    assert resolve(present, update) == after


def test_absent_is_what_the_null_value_is_compared_with() -> None:
    absent = AttributeUpdate(A, VERB.REPLACE_IF_EQUALS, 3, NULL_ATTRIBUTE_VALUE)
    assert resolve(None, absent) == 3
    with pytest.raises(BadAttributeUpdateError):
        resolve(1, absent)


def test_an_accumulation_beyond_64_bits_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        resolve(2**63 - 1, AttributeUpdate(A, VERB.ACCUMULATE, 1))


def test_a_transient_segment_takes_sixteen_attributes() -> None:
    pipeline = Pipeline()
    pipeline.accept(MapOperation("t", {ATTRIBUTE_SEGMENT_TYPE: SegmentType.TRANSIENT}))

    def put(number: int) -> UpdateAttributesOperation:
        return UpdateAttributesOperation(
            "t", [AttributeUpdate(bytes([number]) * 16, VERB.REPLACE, 1)]
        )

    pipeline.accept(*(put(number) for number in range(16)))
    pipeline.accept(put(3))
    with pytest.raises(InvalidRequestError, match="at most 16"):
        pipeline.pending.accept(put(16))


def test_changes_that_are_durable_are_let_go_although_something_is_always_in_flight() -> None:
    pipeline = Pipeline()
    pipeline.accept(MapOperation("s", {}))
    values: dict[bytes, int] = {}
    for number in range(5000):
        attribute_id = (number * 7 % 3000).to_bytes(16, "big")
        compare = AttributeUpdate(
            attribute_id,
            VERB.REPLACE_IF_EQUALS,
            number,
            values.get(attribute_id, NULL_ATTRIBUTE_VALUE),
        )
        pipeline.accept(UpdateAttributesOperation("s", [compare]))
        values[attribute_id] = number
        pipeline.commit(max(0, len(pipeline.in_flight) - 20))
    [pending] = pipeline.pending.segments.values()
    assert pending.in_flight == 20
    assert len(pending.attributes) + len(pending.older) < 1100
    assert all(pending.value_of(each) == value for each, value in values.items())
    assert pending.base is pipeline.metadata.by_name["s"]
    pipeline.commit()
    assert not pipeline.pending.segments
    assert pipeline.metadata.by_name["s"].attributes == values


def test_an_operation_that_needs_what_only_the_index_has_leaves_no_trace() -> None:
    pipeline = Pipeline()
    pipeline.accept(MapOperation("s", {A: 1, B: 2}))
    pipeline.commit()
    segment = pipeline.metadata.by_name["s"]
    pointers = {ATTRIBUTE_SEGMENT_ROOT_POINTER: 10, ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO: 1}
    places = [AttributeUpdate(each, VERB.REPLACE, value) for each, value in pointers.items()]
    recorded = UpdateAttributesOperation("s", places)
    recorded.segment_id = segment.segment_id
    pipeline.accept(SealOperation("s"), recorded)
    pipeline.commit()
    assert not segment.attribute_memory.dirty
    assert segment.attribute_memory.evict(2) == 2
    segment.sealed = False
    needed = [
        AttributeUpdate(A, VERB.ACCUMULATE, 1),
        AttributeUpdate(B, VERB.REPLACE, 7),
        AttributeUpdate(EVENT_COUNT, VERB.ACCUMULATE, 1),
    ]
    append = AppendOperation("s", b"x", updates=needed)
    number = pipeline.pending.last_sequence_number
    with pytest.raises(AttributesNotLoadedError):
        pipeline.pending.accept(append)
    assert pipeline.pending.missing_attributes(append) == (segment, {A})
    assert pipeline.pending.last_sequence_number == number
    assert not pipeline.pending.segments
    segment.attribute_memory.load([(A, 1)])
    pipeline.accept(append)
    assert append.attribute_values == {A: 2, B: 7, EVENT_COUNT: 1}


def test_the_container_records_attributes_of_the_very_segment_that_it_means() -> None:
    pipeline = Pipeline()
    pipeline.accept(MapOperation("s", {}), DeleteOperation("s"), MapOperation("s", {}))
    recorded = UpdateAttributesOperation("s", [AttributeUpdate(A, VERB.REPLACE, 1)])
    recorded.segment_id = 1
    with pytest.raises(NoSuchSegmentError):
        pipeline.pending.accept(recorded)


@pytest.mark.parametrize("name", ["s" * 693, "\u00e9" * 116, "#" * 231, "s" * 65_510])
def test_a_name_that_tier_2_could_not_take_is_refused(name: str) -> None:
    pipeline = Pipeline()
    with pytest.raises(InvalidRequestError, match="at most 692 bytes"):
        pipeline.accept(MapOperation(name, {}))
    longest = "/".join(["s" * 255, "s" * 255, "9" * 10 + ".#epoch." + "9" * 10])
    pipeline.accept(MapOperation(longest + "#transaction." + "f" * 32, {}))


def longest_key(name: str) -> str:
    """Return the longest of all keys that objects of a segment may have in S3."""
    chunk = new_chunk_name(
        attribute_segment_name(storage_name(name, 2**63 - 1)), start=0, epoch=2**31, number=2**31
    )
    return "p" * PREFIX_BYTES_MAX + chunk_prefix(chunk) + object_name(Piece(1, 1, 0, 0))


@given(st.text(alphabet="a./#$~-_%é\udc80", min_size=1, max_size=300), st.integers(1, 800))
def test_a_segment_whose_name_is_too_long_for_tier_2_is_refused_before_anything_is_stored(
    text: str, length: int
) -> None:
    name = (text * (length // len(text) + 1))[:length]
    pipeline = Pipeline()
    fits = len(longest_key(name)) <= KEY_BYTES_MAX
    try:
        pipeline.accept(MapOperation(name, {}))
    except InvalidRequestError:
        # Three bytes at most are counted twice: a dot behind two slashes.
        assert not fits or "//" in name
        assert not pipeline.in_flight
    else:
        assert fits


def test_a_segment_with_the_longest_name_that_clients_make_is_created() -> None:
    stream = f"{'s' * 255}/{'t' * 255}/{2**31 - 1}.#epoch.{2**31 - 1}"
    names = [
        stream,
        transaction_segment_name(stream, bytes(16)),
        transient_segment_name(stream, bytes(16), bytes(16)),
        transaction_segment_name(stream, bytes(16)) + "#index",
    ]
    Pipeline().accept(*(MapOperation(name, {}) for name in names))


def accepted_names() -> st.SearchStrategy[str]:
    """Return a strategy for names that ``validate_name`` accepts."""
    return _names(NAME_LENGTH_MAX, underscore=True)


def accepted_user_names() -> st.SearchStrategy[str]:
    """Return a strategy for names that ``validate_user_name`` accepts."""
    return _names(USER_NAME_LENGTH_MAX, underscore=False)


def _names(length_max: int, *, underscore: bool) -> st.SearchStrategy[str]:
    text = st.text("aZ09.-", min_size=1, max_size=length_max)
    repeated = st.builds(
        lambda part, length: (part * length)[:length],
        st.text("aZ09.-", min_size=1, max_size=7),
        st.integers(length_max - 9, length_max),
    )
    found = st.one_of(text, repeated)
    if underscore:
        found = st.one_of(found, found.map(lambda name: f"_{name}"[:length_max]))
    return found.filter(lambda name: name not in (".", ".."))


@given(accepted_names(), accepted_names(), accepted_user_names())
def test_every_segment_of_names_that_the_controller_accepts_has_a_place_in_every_tier_2(
    scope: str, stream: str, user_name: str
) -> None:
    assert validate_name(scope)
    assert validate_name(stream)
    assert validate_user_name(user_name)
    segments = [
        *segments_of_stream(scope, stream),
        *segments_of_group(scope, user_name),
        *segments_of_table(scope, user_name),
    ]
    Pipeline().accept(*(MapOperation(name, {}) for name in dict.fromkeys(segments)))
    paths: set[str] = set()
    for segment in segments:
        check_name(segment)
        assert len(longest_key(segment)) <= KEY_BYTES_MAX
        chunk = new_chunk_name(attribute_segment_name(segment), start=0, epoch=1, number=1)
        path = path_of(chunk)
        assert name_of(path) == chunk
        assert all(0 < len(part.encode()) <= 255 for part in path.split("/"))
        assert not {".", ".."}.intersection(path.split("/"))
        paths.add(path)
    assert len(paths) == len(set(segments))


@given(st.text("aZ9.-_/# \u00e9\n", max_size=260), st.booleans())
def test_a_name_that_a_segment_cannot_have_is_refused_by_the_controller(
    text: str, is_scope: bool
) -> None:
    scope, stream = (text, "s") if is_scope else ("s", text)
    try:
        check_name(segment_name(scope, stream, 0))
        parsed = parse_segment_name(segment_name(scope, stream, 0))
    except (InvalidRequestError, InvalidNameError):
        parsed = None
    if parsed is None or (parsed.scope, parsed.stream) != (scope, stream):
        with pytest.raises(InvalidNameError):
            validate_name(text)
