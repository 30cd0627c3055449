"""The bytes of our own commands, which other clients may rely on: docs/formats/scan-plan.md."""

from __future__ import annotations

import pytest

from pravega_wire.codec import HEADER_BYTES, decode, encode
from pravega_wire.commands import (
    AskDelays,
    AskMetrics,
    ChunksHeld,
    Command,
    DelaysTold,
    HoldChunks,
    MetricsTold,
    PlannedChunk,
    PlannedObject,
    PlanScan,
    ScanPlanned,
)

LEASE = bytes(range(16))
CHUNK = PlannedChunk(100, 30, "c", 100, 30, b"abcd", (PlannedObject(0, 30, "p", 5),))


@pytest.mark.parametrize(
    ("command", "frame"),
    [
        (
            PlanScan(7, "s", 1, 2, LEASE, 3, ""),
            "ffffffc0 00000031 0000000000000007 000173 0000000000000001 0000000000000002"
            " 000102030405060708090a0b0c0d0e0f 00000003 0000",
        ),
        (
            ScanPlanned(7, "s", 130, 230, 3, "i", "l", "e", "r", (CHUNK,)),
            "ffffffbf 00000075 0000000000000007 000173 0000000000000082 00000000000000e6 00000003"
            " 000169 00016c 000165 000172 00000001"
            " 0000000000000064 000000000000001e 000163 00000064 000000000000001e"
            " 00000004 61626364 00000001 0000000000000000 000000000000001e 000170 0000000000000005",
        ),
        (
            HoldChunks(7, "s", LEASE, 3, ("c",), ""),
            "ffffffbe 00000028 0000000000000007 000173 000102030405060708090a0b0c0d0e0f 00000003"
            " 00000001 000163 0000",
        ),
        (ChunksHeld(7, "s", 3), "ffffffbd 0000000f 0000000000000007 000173 00000003"),
        (AskDelays(7), "ffffffbc 00000008 0000000000000007"),
        (DelaysTold(7, ("a", "b")), "ffffffbb 00000012 0000000000000007 00000002 000161 000162"),
        (AskMetrics(7, "t"), "ffffffba 0000000b 0000000000000007 000174"),
        (MetricsTold(7, b"{}"), "ffffffb9 0000000a 0000000000000007 7b7d"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_bytes_of_our_own_commands(command: Command, frame: str) -> None:
    data = bytes.fromhex(frame)
    assert encode(command).hex(" ", 4) == data.hex(" ", 4)
    assert decode(command.code, data[HEADER_BYTES:]) == command
