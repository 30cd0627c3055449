"""The load: programs that write, follow and read a stream and keep a ledger of it.

    python -m vortex.workers write CONTROLLER SCOPE STREAM DIRECTORY NAME SEED
    python -m vortex.workers read CONTROLLER SCOPE STREAM DIRECTORY NAME SEED

A writer ends once the file ``DIRECTORY/stop`` is there; a reader reads from the head and ends with
the sealed stream. Each keeps its ledger in ``DIRECTORY/NAME.log`` (``compat_harness.checker`` says
what its lines mean), and writers keep the count of acknowledged events in ``DIRECTORY/NAME.acked``.
The environment names the user, its password and the authorities, as for our command line.
"""

from __future__ import annotations

import os
import random
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from segstore_client.access.settings import build_access, read_environment
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import RETRIED_ERRORS, ControllerClient

PATIENCE_SECONDS = 600.0
"""Longer than any fault: a writer that gives up is a finding."""
KEYS_PER_WRITER = 4
BATCH_EVENTS_MAX = 300
FILLER_BYTES = (20, 200)
LARGE_FILLER_BYTES = (50_000, 400_000)
LARGE_SHARE = 0.002
PAUSE_SECONDS_MAX = 0.02
BYTES_PER_SECOND = 150_000
"""Average rate of a writer: the disk has to hold the stream of an hour."""
READ_SECONDS = 1.0
RETRY_SECONDS = 0.2
BODY = random.Random(1).randbytes(LARGE_FILLER_BYTES[1] * 2)


def encode_event(key: str, sequence: int, rng: random.Random) -> bytes:
    """Return an event that says which one it is and whether its bytes are intact."""
    sizes = LARGE_FILLER_BYTES if rng.random() < LARGE_SHARE else FILLER_BYTES
    length = rng.randint(*sizes)
    start = rng.randrange(len(BODY) - length)
    body = b"%s %d " % (key.encode(), sequence) + BODY[start : start + length]
    return b"%08x " % zlib.crc32(body) + body


def decode_event(data: bytes) -> tuple[str, int, bool]:
    """Return the key, the sequence number and whether the bytes are those that were written."""
    checksum, _, body = data.partition(b" ")
    key, sequence, _ = body.split(b" ", 2)
    return key.decode(), int(sequence), int(checksum, 16) == zlib.crc32(body)


def write(
    controller: ControllerClient, scope: str, stream: str, directory: Path, name: str, seed: int
) -> None:
    """Write batches of events until told to stop."""
    rng = random.Random(seed)
    sequences = {f"{name}-{number}": 0 for number in range(KEYS_PER_WRITER)}
    acked_count = byte_count = 0
    began = time.monotonic()
    with (directory / f"{name}.log").open("w", buffering=1 << 16) as ledger:
        writer = _open_writer(controller, scope, stream)
        while not (directory / "stop").exists():
            batch: list[tuple[str, int]] = []
            for _ in range(rng.randint(1, BATCH_EVENTS_MAX)):
                key = rng.choice(list(sequences))
                batch.append((key, sequences[key]))
                sequences[key] += 1
            _add_facts(ledger, "sent", batch)
            for key, sequence in batch:
                event = encode_event(key, sequence, rng)
                byte_count += len(event)
                writer.submit(event, key=key)
            writer.flush()
            _add_facts(ledger, "acked", batch)
            acked_count += len(batch)
            (directory / f"{name}.acked").write_text(str(acked_count))
            ahead = byte_count / BYTES_PER_SECOND - (time.monotonic() - began)
            time.sleep(max(ahead, rng.uniform(0.0, PAUSE_SECONDS_MAX)))
        writer.close()


def read(
    controller: ControllerClient, scope: str, stream: str, directory: Path, name: str, seed: int
) -> None:
    """Read from the head until the stream is sealed and read to its end."""
    with (directory / f"{name}.log").open("w", buffering=1 << 16) as ledger:
        reader = _open_reader(controller, scope, stream)
        while not reader.is_finished:
            event = reader.next_event(timeout=READ_SECONDS)
            if event is None:
                continue
            key, sequence, is_intact = decode_event(event.data)
            ledger.write(f"{'read' if is_intact else 'corrupt'} {key} {sequence}\n")
        reader.close()


def _add_facts(ledger: TextIO, fact: str, batch: Sequence[tuple[str, int]]) -> None:
    ledger.writelines(f"{fact} {key} {sequence}\n" for key, sequence in batch)


def _open_writer(controller: ControllerClient, scope: str, stream: str) -> BlockingEventWriter:
    while True:
        try:
            return BlockingEventWriter(controller, scope, stream, patience=PATIENCE_SECONDS)
        except RETRIED_ERRORS:
            time.sleep(RETRY_SECONDS)


def _open_reader(controller: ControllerClient, scope: str, stream: str) -> BlockingEventReader:
    while True:
        try:
            return BlockingEventReader(controller, scope, stream, patience=PATIENCE_SECONDS)
        except RETRIED_ERRORS:
            time.sleep(RETRY_SECONDS)


def main(arguments: Sequence[str]) -> None:
    """Run one worker to its end."""
    verb, address, scope, stream, directory, name, seed = arguments
    work = {"write": write, "read": read}[verb]
    access = build_access([read_environment(os.environ)])
    with ControllerClient(address, access=access) as controller:
        work(controller, scope, stream, Path(directory), name, int(seed))


if __name__ == "__main__":
    main(sys.argv[1:])
