"""Fuzzes every parser, in turns, for a while; or feeds one of them with one input again.

    make fuzz [SECONDS=60] [SEED=...] [TARGET='data frames']
    make fuzz TARGET='data frames' CHOICES=... INPUT=...       what a finding says

Each turn has a seed of its own, so that a longer run is more than the same inputs again. The input
at work is kept in build/fuzz, where it is found after a crash of the interpreter itself.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fuzzing import INPUT_BYTES_MAX, FuzzFinding, Target, fuzz, packed, replay, unpacked
from targets import TARGETS

TURN_SECONDS = 2.0
HANG_SECONDS = 60
KEPT = Path(__file__).parents[2] / "build" / "fuzz"


def keeper(name: str) -> Callable[[bytes], None]:
    """Return a function that stores the next input in a file, so that it outlives the process."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / name.replace(" ", "-")
    with path.open("w+b") as file:
        file.truncate(4 + 2 * INPUT_BYTES_MAX)
        memory = mmap.mmap(file.fileno(), 0)

    def keep(data: bytes) -> None:
        memory[:4] = len(data).to_bytes(4, "big")
        memory[4 : 4 + len(data)] = data

    return keep


def run(targets: list[Target], *, seed: int, seconds: float) -> int:
    """Run the targets and return the number of findings; a target with one gets no more turns."""
    left = {target.name: target for target in targets}
    keepers = {target.name: keeper(target.name) for target in targets}
    counts = dict.fromkeys(left, 0)
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        for target in list(left.values()):
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            try:
                turn = min(TURN_SECONDS, seconds / len(targets))
                counts[target.name] += fuzz(
                    target, seed=seed, seconds=turn, before=keepers[target.name]
                )
            except FuzzFinding as finding:
                print(finding, flush=True)
                del left[target.name]
        seed += 1
    faulthandler.cancel_dump_traceback_later()
    for name, count in counts.items():
        print(f"{count:9,d} inputs  {name}{'' if name in left else ': A FINDING'}")
    return len(targets) - len(left)


def main() -> int:
    """Run what the environment asks for."""
    wanted = os.environ.get("TARGET", "")
    targets = [target for target in TARGETS if wanted in ("", target.name)]
    if not targets:
        print(f"no target {wanted!r}; there are: {', '.join(t.name for t in TARGETS)}")
        return 2
    if text := os.environ.get("INPUT"):
        print(replay(targets[0], unpacked(text), int(os.environ.get("CHOICES", "0"))))
        return 0
    if os.environ.get("LAST"):
        data = (KEPT / targets[0].name.replace(" ", "-")).read_bytes()
        print(packed(data[4 : 4 + int.from_bytes(data[:4], "big")]))
        return 0
    seed = int(os.environ.get("SEED") or time.time_ns() % 2**32)
    seconds = float(os.environ.get("SECONDS") or 60)
    print(f"seed {seed}, {seconds:g} seconds", flush=True)
    return min(1, run(targets, seed=seed, seconds=seconds))


if __name__ == "__main__":
    sys.exit(main())
