"""A stream that scales by load: from one segment to several and back, in minutes, as a picture.

    make demo-scaling                        prints a line every few seconds
    make demo-scaling ARGS=--report          also draws docs/performance/scaling.svg

1. The store works with windows of seconds where it usually takes minutes: every time that has to do
   with scaling is divided by the same number.
2. One writer follows a plan of rates. Every few milliseconds it writes what is due, and waits until
   that is stored: what it waits is the latency of all events of that step.
"""

import argparse
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from foreign_servers.tied_processes import tied

from benchmarks.plots import Curve, Panel, timeline_svg
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Scaling, ScalingKind, StreamSettings

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "performance" / "scaling.svg"
FASTER = 60
"""A minute of the original's times takes a second."""
TARGET_RATE = 250
PLAN = ((15.0, 200), (60.0, 1_600), (75.0, 100))
"""Seconds and events a second, one after the other."""
STEP_SECONDS = 0.02
EVENT_BYTES = 100
KEYS = 1_000
SCOPE, STREAM = "demo", "load"
NUMBER = struct.Struct(">Q")
"""The beginning of an event: how many were written before it."""


@dataclass(slots=True)
class Second:
    """The measurements of one second."""

    at: float
    events: int
    p50_ms: float
    p95_ms: float
    segments: int


def make_settings(faster: float) -> str:
    """Return a settings file in which all times of scaling are divided by a number."""
    windows = ", ".join(str(seconds / faster) for seconds in (120, 300, 600, 1200))
    return f"""\
[segment_store.auto_scale]
sample_seconds = 0.25
window_seconds = [{windows}]
cooldown_seconds = {600 / faster}
mute_seconds = {600 / faster}
expiry_seconds = {1200 / faster}

[controller]
request_poll_seconds = 0.25
idle_segment_seconds = {1200 / faster}
"""


@contextmanager
def running_store(directory: Path, controller_port: int, store_port: int) -> Iterator[str]:
    """Run a store of its own; yield the address of its controller."""
    settings = directory / "settings.toml"
    settings.write_text(make_settings(FASTER))
    command = [
        str(Path(sys.executable).parent / "segstore"),
        "standalone",
        f"--data-dir={directory / 'data'}",
        f"--controller-port={controller_port}",
        f"--segment-store-port={store_port}",
        f"--config={settings}",
        "--log-level=warning",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(tied(command), stdout=log, stderr=log)
    address = f"tcp://127.0.0.1:{controller_port}"
    try:
        wait_until_it_answers(address)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def wait_until_it_answers(address: str) -> None:
    """Return when the controller knows its scopes."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with ControllerClient(address) as client:
                list(client.list_scopes())
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@dataclass(slots=True)
class _Numbers:
    """The events that were written so far: each has its number, and one of ``KEYS`` keys."""

    padding: bytes
    written: int = 0

    def submit_next(self, writer: BlockingEventWriter[bytes]) -> None:
        event = NUMBER.pack(self.written) + self.padding
        writer.submit(event, key=str(self.written % KEYS))
        self.written += 1


def measure(
    address: str,
    plan: tuple[tuple[float, float], ...],
    *,
    target_rate: int = TARGET_RATE,
    event_bytes: int = EVENT_BYTES,
) -> Iterator[Second]:
    """Follow the plan and yield the measurements of each second."""
    scaling = Scaling(ScalingKind.EVENT_RATE, 1, target_rate, 2)
    with ControllerClient(address) as client:
        client.create_scope(SCOPE)
        client.create_stream(SCOPE, STREAM, StreamSettings(scaling=scaling))
        with BlockingEventWriter(client, SCOPE, STREAM) as writer:
            began = time.monotonic()
            phase_began = 0.0
            numbers = _Numbers(bytes(event_bytes - NUMBER.size))
            for seconds, rate in plan:
                yield from _follow(client, writer, began, phase_began, seconds, rate, numbers)
                phase_began += seconds


def _follow(
    client: ControllerClient,
    writer: BlockingEventWriter[bytes],
    began: float,
    phase_began: float,
    seconds: float,
    rate: float,
    numbers: _Numbers,
) -> Iterator[Second]:
    """Run one phase of the plan at one rate. It makes up for delays, a little at a time."""
    due, latencies, events = 0.0, list[float](), 0
    at = last = time.monotonic() - began
    while at < phase_began + seconds:
        due = min(due + rate * (time.monotonic() - began - at), rate * 10 * STEP_SECONDS)
        at = time.monotonic() - began
        sent = time.monotonic()
        for _ in range(int(due)):
            numbers.submit_next(writer)
        events += int(due)
        count = int(due)
        due -= count
        if count:
            writer.flush()
            latencies += [1000 * (time.monotonic() - sent)] * count
        if at - last >= 1 and latencies:
            cuts = quantiles([*latencies, latencies[-1]], n=20)
            segments = len(client.current_segments(SCOPE, STREAM).ranges)
            yield Second(at, round(events / (at - last)), cuts[9], cuts[18], segments)
            last, latencies, events = at, [], 0
        time.sleep(max(0.0, STEP_SECONDS - (time.monotonic() - sent)))


def picture_of(seconds: list[Second]) -> str:
    """Draw rate, latency and segments over time."""
    return timeline_svg(
        f"A stream with a target of {TARGET_RATE} events/s for each segment",
        f"seconds, where the policy usually takes {FASTER} times as long",
        (
            Panel("events/s", (Curve("written", tuple((s.at, s.events) for s in seconds)),)),
            Panel(
                "ms until stored",
                (
                    Curve("p50", tuple((s.at, s.p50_ms) for s in seconds)),
                    Curve("p95", tuple((s.at, s.p95_ms) for s in seconds)),
                ),
            ),
            Panel(
                "segments",
                (Curve("active", tuple((s.at, s.segments) for s in seconds)),),
                steps=True,
            ),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--report", action="store_true", help=f"draw {PICTURE.name}")
    parser.add_argument("--controller-port", type=int, default=19290)
    parser.add_argument("--segment-store-port", type=int, default=19245)
    options = parser.parse_args()
    measured = []
    with (
        tempfile.TemporaryDirectory() as directory,
        running_store(
            Path(directory), options.controller_port, options.segment_store_port
        ) as address,
    ):
        for second in measure(address, PLAN):
            measured.append(second)
            if len(measured) % 5 == 0:
                print(
                    f"{second.at:5.0f} s  {second.events:6d} events/s  p50 {second.p50_ms:6.2f} ms"
                    f"  p95 {second.p95_ms:6.2f} ms  {second.segments} segments",
                    flush=True,
                )
    most = max(second.segments for second in measured)
    print(f"one segment became {most}, and {measured[-1].segments} again")
    if options.report:
        PICTURE.write_text(picture_of(measured))
        print(f"drawn: {PICTURE}")


if __name__ == "__main__":
    main()
