"""The bytes of a log's node, and its changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.errors import DataLogCorruptError
from segstore.tiers.bookkeeper.log_metadata import (
    ENTRY_BITS,
    LogLedger,
    LogMetadata,
    Status,
    decode_log_metadata,
    encode_log_metadata,
    log_path,
)

NUMBERS = st.integers(0, 2**62 - 2)
LEDGERS = st.builds(LogLedger, NUMBERS, st.integers(0, 2**30 - 2), st.sampled_from(Status))
FIRST = LogMetadata().add(3)


def test_nodes_have_the_bytes_of_the_original() -> None:
    assert encode_log_metadata(FIRST) == bytes.fromhex("0000010000000008 01 01 00 00 01 03 01 00")
    second = LogMetadata(
        epoch=2,
        truncated_position=1 << 32 | 4,
        truncated_ledger_id=3,
        ledgers=(LogLedger(3, 1, Status.NOT_EMPTY), LogLedger(70, 2)),
    )
    assert encode_log_metadata(second) == bytes.fromhex(
        "0000010000000013 01 02 c000000100000004 03 02 03 01 02 4046 02 00"
    )


@given(
    st.builds(LogMetadata, st.booleans(), NUMBERS, NUMBERS, NUMBERS, st.lists(LEDGERS).map(tuple))
)
def test_nodes_round_trip(metadata: LogMetadata) -> None:
    assert decode_log_metadata(encode_log_metadata(metadata)) == metadata


@given(st.binary(max_size=40))
def test_any_bytes_are_a_node_or_refused(data: bytes) -> None:
    for start in (b"", bytes.fromhex("00000100000000"), bytes.fromhex("0000010000000004010203")):
        try:
            decode_log_metadata(start + data)
        except DataLogCorruptError:
            continue


def test_a_truncation_names_the_last_address_that_is_dropped() -> None:
    metadata = FIRST.add(5).add(9)
    assert [each.sequence for each in metadata.ledgers] == [1, 2, 3]
    assert metadata.epoch == 3
    inside = metadata.truncate(2 << ENTRY_BITS | 7)
    assert (inside.truncated_position, inside.truncated_ledger_id) == (2 << 32 | 6, 5)
    assert [each.ledger_id for each in inside.ledgers] == [5, 9]
    at_begin = metadata.truncate(3 << ENTRY_BITS | 0)
    assert (at_begin.truncated_position, at_begin.truncated_ledger_id) == (3 * 2**32 - 1, 9)
    assert [each.ledger_id for each in at_begin.ledgers] == [9]
    keeping = metadata.truncate(3 << ENTRY_BITS | 0, keeps={5})
    assert keeping.truncated_ledger_id == 9
    assert [each.ledger_id for each in keeping.ledgers] == [5, 9]


@pytest.mark.parametrize(
    ("container_id", "path"), [(0, "/x/0/0/0"), (7, "/x/7/0/7"), (1234, "/x/4/3/1234")]
)
def test_where_nodes_are(container_id: int, path: str) -> None:
    assert log_path("/x", container_id) == path
