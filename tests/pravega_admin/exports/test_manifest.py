"""The manifest of an export: what it may say, and the order in which runs of events may come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_admin.exports.manifest import (
    FORMAT,
    Manifest,
    Positions,
    Run,
    SegmentPart,
    decode_manifest,
    encode_manifest,
    encode_settings,
    plan_layouts,
)
from segstore_client.controller.stream_settings import (
    Retention,
    RetentionKind,
    Scaling,
    ScalingKind,
    StreamSettings,
)
from segstore_client.errors import DamagedExportError

STEPS = (
    (SegmentPart(0, 0.0, 0.5, 0, 20), SegmentPart(1, 0.5, 1.0, 8, 28)),
    (SegmentPart(2 + (1 << 32), 0.0, 0.25, 0, 0), SegmentPart(3 + (1 << 32), 0.25, 0.5, 0, 10)),
    (SegmentPart(4 + (2 << 32), 0.25, 1.0, 0, 0),),
)
SETTINGS = StreamSettings(
    scaling=Scaling(ScalingKind.EVENT_RATE, 2, 100, 3),
    retention=Retention(RetentionKind.SIZE, 10, 20),
    tags=("a", "ü"),
    rollover_size_bytes=7,
)


def manifest_of(steps: tuple[tuple[SegmentPart, ...], ...] = STEPS) -> Manifest:
    return Manifest(
        format=FORMAT,
        id="0123456789abcdef" * 2,
        stream="demo/a",
        exported="2026-03-01T12:00:00+00:00",
        places=("head", "tail"),
        is_sealed=False,
        settings=encode_settings(SETTINGS),
        steps=steps,
    )


def test_a_manifest_comes_back_with_its_settings() -> None:
    manifest = manifest_of()
    found = decode_manifest(encode_manifest(manifest))
    assert found == manifest
    assert found.stream_settings() == SETTINGS
    assert found.total_bytes == 50


@given(st.lists(st.floats(0.0, 1.0, exclude_min=True, exclude_max=True), unique=True, max_size=20))
def test_ranges_of_keys_come_back_exactly(bounds: list[float]) -> None:
    edges = [0.0, *sorted(bounds), 1.0]
    step = tuple(
        SegmentPart(number, low, high, 0, 0) for number, (low, high) in enumerate(pairwise(edges))
    )
    assert decode_manifest(encode_manifest(manifest_of((step,)))).steps == (step,)


def test_layouts_that_no_event_needs_are_left_out() -> None:
    assert [[part.id & 0xFF for part in layout] for layout in plan_layouts(STEPS)] == [
        [0, 1],
        [2, 3, 1],
        [2, 4],
    ]
    empty_middle = (
        STEPS[0],
        (SegmentPart(9, 0.0, 1.0, 0, 0),),
        (SegmentPart(10, 0.0, 1.0, 0, 0),),
    )
    assert [[part.id for part in layout] for layout in plan_layouts(empty_middle)] == [[0, 1], [10]]


WHOLE = SegmentPart(0, 0.0, 1.0, 0, 20)


@pytest.mark.parametrize(
    "steps",
    [
        (),
        ((),),
        ((SegmentPart(0, 0.0, 0.5, 0, 1),),),
        ((SegmentPart(0, 0.0, 0.5, 0, 1), SegmentPart(1, 0.25, 1.0, 0, 1)),),
        ((SegmentPart(0, 0.5, 0.5, 0, 1),),),
        ((SegmentPart(0, 0.0, 1.0, 5, 1),),),
        ((SegmentPart(0, 0.0, 1.0, -5, 1),),),
        ((WHOLE,), (WHOLE,)),
        ((WHOLE,), (SegmentPart(1, 0.0, 0.5, 0, 1),)),
        ((WHOLE,), ()),
    ],
)
def test_steps_that_do_not_replace_each_other_exactly_are_refused(
    steps: tuple[tuple[SegmentPart, ...], ...],
) -> None:
    with pytest.raises(DamagedExportError):
        decode_manifest(encode_manifest(manifest_of(steps)))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"format":1}'])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedExportError):
        decode_manifest(data)


def test_a_later_form_is_refused_with_its_number() -> None:
    text = encode_manifest(manifest_of()).replace(b'"format":1', b'"format":2')
    with pytest.raises(DamagedExportError, match="the form 2"):
        decode_manifest(text)


def test_settings_that_make_no_sense_are_refused() -> None:
    text = encode_manifest(manifest_of()).replace(b'"events"', b'"sideways"')
    with pytest.raises(DamagedExportError, match="settings"):
        decode_manifest(text).stream_settings()


RIGHT = [
    Run(0, 0, [b"12"]),
    Run(1, 8, [b"12"]),
    Run(1, 18, [b"34"]),
    Run(0, 10, [b"34"]),
    Run(3 + (1 << 32), 0, [b"ab"]),
]


def taken(runs: list[Run]) -> Positions:
    positions = Positions(STEPS)
    for run in runs:
        positions.take(run)
    return positions


def test_runs_in_their_order_are_complete() -> None:
    positions = taken(RIGHT)
    positions.check_complete()
    assert (positions.taken_events, positions.taken_bytes) == (5, 50)
    assert positions.rest() == [{}, {}, {}]


def test_only_whole_segments_in_their_order_are_taken() -> None:
    for number in range(len(RIGHT)):
        left = RIGHT[:number] + RIGHT[number + 1 :]
        doubled = RIGHT[: number + 1] + RIGHT[number:]
        with pytest.raises(DamagedExportError):
            taken(left).check_complete()
        with pytest.raises(DamagedExportError):
            taken(doubled).check_complete()
    for wrong in (
        Run(7, 0, [b"12"]),  # unknown
        Run(0, 0, [b"1234567890123"]),  # longer than its segment
        Run(3 + (1 << 32), 0, [b"ab"]),  # before what it replaces
    ):
        with pytest.raises(DamagedExportError):
            taken([wrong])


def test_what_is_missing_is_known_by_step() -> None:
    assert taken(RIGHT[:2]).rest() == [
        {0: (10, 20), 1: (18, 28)},
        {3 + (1 << 32): (0, 10)},
        {},
    ]
