"""Settings survive the wire, and people's units mean what they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire import controller_pb2 as pb
from segstore_client.controller.stream_settings import (
    Retention,
    RetentionKind,
    Scaling,
    ScalingKind,
    StreamSettings,
    format_size,
    parse_duration_ms,
    parse_size_bytes,
    settings_of_message,
    settings_to_message,
)
from segstore_client.errors import UsageError

INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)

SETTINGS = st.builds(
    StreamSettings,
    scaling=st.builds(Scaling, st.sampled_from(ScalingKind), INT32, INT32, INT32),
    retention=st.one_of(
        st.just(Retention()),
        st.builds(
            Retention,
            st.sampled_from([RetentionKind.TIME, RetentionKind.SIZE]),
            INT64,
            INT64,
        ),
    ),
    tags=st.lists(st.text(st.characters(exclude_categories=["Cs"]))).map(tuple),
    rollover_size_bytes=INT64,
    timestamp_aggregation_timeout_ms=INT64,
)


@given(SETTINGS)
def test_settings_read_from_a_stream_and_sent_back_change_nothing(
    settings: StreamSettings,
) -> None:
    encoded = settings_to_message("scope", "stream", settings).SerializeToString()
    assert settings_of_message(pb.StreamConfig.FromString(encoded)) == settings


def test_a_stream_without_retention_sends_none() -> None:
    message = settings_to_message("scope", "stream", StreamSettings())
    assert not message.HasField("retentionPolicy")
    assert message.scalingPolicy.minNumSegments == 1


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("90s", 90_000), ("12h", 43_200_000), ("7d", 604_800_000), ("1.5 m", 90_000), ("250ms", 250)],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500_000_000), ("10GiB", 10 * 2**30), ("4096", 4096), ("1.5kib", 1536), ("7b", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "7", "d7", "7 days", "-1s", "1e3s", "0s", "99999999999999w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "GB", "1 PB", "-5", "0", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size_bytes(text)


def test_sizes_for_people() -> None:
    assert format_size(0) == "0 B"
    assert format_size(999) == "999 B"
    assert format_size(1_500_000) == "1.5 MB"
    assert format_size(7 * 10**12) == "7 TB"
