"""Records and the page that describes them: each example decodes and encodes to the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.background import members
from pravega_controller.errors import CorruptMetadataError
from pravega_controller.metadata import records, transaction_records
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import (
    EpochRecord,
    HeadRecord,
    StreamRecord,
    decode,
    encode,
)
from pravega_controller.metadata.scope_records import SCOPES
from pravega_controller.metadata.streams.used_numbers import NUMBERS
from pravega_controller.retention import retention
from pravega_controller.rules.history import Epoch
from pravega_controller.rules.stream_cuts import CUT_SEGMENTS_MAX
from pravega_controller.rules.streams import (
    SEGMENTS_PER_STREAM_MAX,
    Segment,
    even_ranges,
    segments_in_ranges,
)
from pravega_controller.scaling import autoscaling
from pravega_controller.scaling.autoscaling import IDLE_SEGMENTS
from pravega_controller.store_client.table_client import VALUE_BYTES_MAX
from pravega_controller.streams import old_epochs, tag_index
from pravega_controller.tables import key_value_tables
from pravega_controller.watermarks import watermarks

PAGE = Path(__file__).parents[3] / "docs/formats/controller-metadata.md"

STORED = {
    name: kind
    for module in (
        records,
        key_value_tables,
        members,
        autoscaling,
        old_epochs,
        retention,
        tag_index,
        transaction_records,
        watermarks,
    )
    for name, kind in vars(module).items()
    if name.endswith("Record")
}


def examples() -> list[tuple[str, bytes]]:
    """Return each section's examples: the record's name and the bytes."""
    found = []
    for section in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        name = section.splitlines()[0]
        found += [
            (name, text.encode()) for text in re.findall(r"```json\n(.*?)\n```", section, re.DOTALL)
        ]
    return found


@pytest.mark.parametrize(("name", "value"), examples())
def test_the_page_shows_the_bytes_as_they_are(name: str, value: bytes) -> None:
    assert encode(decode(value, STORED[name])) == value


def test_the_page_shows_every_record() -> None:
    assert {name for name, _ in examples()} == STORED.keys()


def test_the_page_names_the_fixed_tables() -> None:
    for table in (
        SCOPES,
        INTENTS,
        members.MEMBERS,
        NUMBERS,
        IDLE_SEGMENTS,
        retention.RETENTION,
        watermarks.WRITER_MARKS,
    ):
        assert f"`{table}`" in PAGE.read_text()


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**62))
def test_doubles_and_ids_come_back_bit_for_bit(low: float, high: float, identifier: int) -> None:
    epoch = Epoch(0, 0, 1, (Segment(identifier, low, high),))
    (segment,) = decode(encode(EpochRecord(epoch, 0)), EpochRecord).epoch.created
    assert (segment.segment_id, segment.low.hex(), segment.high.hex()) == (
        identifier,
        low.hex(),
        high.hex(),
    )


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", b'{"format":2,"next_number":1}', b'{"format":1}', b"\xff"],
)
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptMetadataError):
        decode(value, records.NumberRecord)


def test_the_largest_epoch_fits_a_table_value() -> None:
    """It replaces as many segments as there may be, and its snapshot names them."""
    ranges = [(low / 3, high / 3) for low, high in even_ranges(SEGMENTS_PER_STREAM_MAX)]
    created = segments_in_ranges(ranges, epoch=2**31 - 1, first_number=2**31 - 6000)
    epoch = Epoch(2**31 - 1, 2**31 - 1, 10**13, created, created)
    assert len(encode(EpochRecord(epoch, 2**31 - 1))) <= VALUE_BYTES_MAX
    assert len(encode(records.SnapshotRecord(2**31 - 1, created))) <= VALUE_BYTES_MAX
    sizes = {segment.segment_id: 2**62 for segment in created}
    assert len(encode(records.SizesRecord(sizes))) <= VALUE_BYTES_MAX


def test_the_largest_head_fits_a_table_value_together_with_the_one_before() -> None:
    cut = {2**62 + number: 2**62 for number in range(CUT_SEGMENTS_MAX)}
    assert len(encode(records.SubscriberRecord(2**31, cut))) <= VALUE_BYTES_MAX
    assert len(encode(HeadRecord(2**31, cut, cut))) <= VALUE_BYTES_MAX


def test_a_streams_own_record_is_small_whatever_its_past() -> None:
    most = 2**31 - 1
    record = StreamRecord(
        2**62,
        most,
        most,
        most,
        most,
        most,
        2**20,
        most,
        most,
        True,
        most,
        most,
        records.Expiring(most, 2**62),
        records.Delete(),
    )
    assert len(encode(record)) < 500


def test_text_that_is_no_utf_8_is_corrupt_metadata() -> None:
    damaged = encode(records.ScopeRecord("id", "active")).replace(b"id", b"\xc8d")
    with pytest.raises(CorruptMetadataError, match="not a ScopeRecord"):
        decode(damaged, records.ScopeRecord)
