"""The works of a Python client, as a command line: ``ADDRESS WORK STREAM WARM COUNT BYTES``.

1. Every client writes and reads the same streams: ``WARM`` events of ``STREAM-warm`` first, so that
   nothing is cold, and then ``COUNT`` events of ``STREAM``. Only these are measured.
2. The time begins before the first event is written, or asked for, and ends when the last one is
   acknowledged, or has come. CPU is that of the whole process in this time, with all threads.
3. Each event is looked at in the program's loop. Another number of bytes than expected fails.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

SCOPE = "benchmarks"
KEYS = 1000


def list_keys() -> list[str]:
    """Return the keys that events have in turns."""
    return [f"key-{number}" for number in range(KEYS)]


@dataclass(frozen=True, slots=True)
class Work:
    """Events to write to a stream, or to read from it by one reader of a new group."""

    stream: str
    count: int
    event_bytes: int

    @property
    def group(self) -> str:
        """Return the name of a group that nobody has used."""
        return f"group-{time.time_ns()}"

    def check(self, total_bytes: int) -> None:
        """Fail unless so many bytes are those of all events."""
        wanted = self.count * self.event_bytes
        if total_bytes != wanted:
            raise SystemExit(f"{total_bytes} bytes were read instead of {wanted}")


@dataclass(frozen=True, slots=True)
class Taken:
    """What a work took: seconds, and seconds of CPU."""

    seconds: float
    cpu_seconds: float


class Watch:
    """The two clocks, from now on."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def stop(self) -> Taken:
        """Return what was taken since."""
        seconds, cpu_seconds = self._began
        return Taken(time.perf_counter() - seconds, time.process_time() - cpu_seconds)


async def run_works(works: dict[str, Callable[[Work], Awaitable[Taken]]]) -> None:
    """Do the work of the command line, warm, and print what it took as JSON."""
    name, stream, *numbers = sys.argv[2:]
    warm, count, event_bytes = map(int, numbers)
    await works[name](Work(f"{stream}-warm", warm, event_bytes))
    print(json.dumps(asdict(await works[name](Work(stream, count, event_bytes)))))
