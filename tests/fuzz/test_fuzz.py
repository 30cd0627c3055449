"""Some broken input for every parser; ``make fuzz`` goes on for longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from random import Random

import pytest
from fuzzing import SECONDS_MAX, FuzzFinding, Target, fuzz, replay, unpacked
from targets import TARGETS

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0.4"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.mark.timeout(max(120, 20 * SECONDS))
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name.replace(" ", "-"))
def test_broken_input_gets_a_value_or_a_documented_error(target: Target) -> None:
    assert fuzz(target, seed=SEED, seconds=SECONDS) > len(target.corpus())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name.replace(" ", "-"))
def test_valid_input_is_no_error(target: Target) -> None:
    for data in target.corpus():
        target.parse(data, Random(0))
        if target.repair is not None:
            assert target.repair(data) == data


# ---- What fuzzes finds faults --------------------------------------------------------------------


def fails_behind_a_check(data: bytes, random: Random) -> object:
    """Read a length without a check that the data has so many bytes."""
    if data[:2] != b"ok" or len(data) < 4:
        raise ValueError("no header")
    return data[4 + data[2]]


def allocates_what_it_is_told(data: bytes, random: Random) -> object:
    return len(bytes(int.from_bytes(data[:4], "big"))) if len(data) >= 4 else None


def never_ends_soon(data: bytes, random: Random) -> object:
    if len(data) > 9:
        time.sleep(SECONDS_MAX)
    return None


@pytest.mark.parametrize(
    ("parse", "what"),
    [
        (fails_behind_a_check, "raises IndexError"),
        (allocates_what_it_is_told, r"asks for \d{8,} bytes"),
        pytest.param(never_ends_soon, r"takes \d", marks=pytest.mark.proof),
    ],
)
def test_a_fault_is_found_and_can_be_seen_again(
    parse: Callable[[bytes, Random], object], what: str
) -> None:
    target = Target("faulty", lambda: [b"ok\x01\x00ab"], parse, (ValueError,))
    with pytest.raises(FuzzFinding, match=what) as caught:
        fuzz(target, seed=1, seconds=60)
    data = unpacked(str(caught.value).partition("INPUT=")[2])
    with pytest.raises(FuzzFinding, match=what):
        replay(target, data)


def test_the_same_seed_gives_the_same_inputs() -> None:
    def inputs(seed: int) -> list[bytes]:
        given: list[bytes] = []
        target = next(target for target in TARGETS if target.name == "text")
        fuzz(target, seed=seed, seconds=0.5, before=given.append)
        return given[:50]

    assert inputs(3) == inputs(3) != inputs(4)
