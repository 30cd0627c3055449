"""Kafka's client for Python: ``python -m benchmarks.python_clients.kafka ADDRESS write ...``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from benchmarks.python_clients.works import Taken, Watch, Work, list_keys, run_works

QUEUE_BYTES = 16 * 1024
"""Kibibytes that wait to be sent, as many as our client's buffer has."""


async def write(work: Work) -> Taken:
    """Write events with keys, each as soon as there is room, and wait until all are stored."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = {"bootstrap.servers": sys.argv[1]}
    admin = AdminClient(settings)
    for made in admin.create_topics([NewTopic(work.stream, 1)]).values():
        made.result()
    failures: list[object] = []

    def note(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({**settings, "queue.buffering.max.kbytes": QUEUE_BYTES})
    data, keys = bytes(work.event_bytes), list_keys()
    watch = Watch()
    for number in range(work.count):
        while True:
            try:
                producer.produce(work.stream, data, keys[number % len(keys)], on_delivery=note)
                break
            except BufferError:
                producer.poll(1.0)
        producer.poll(0)
    producer.flush()
    taken = watch.stop()
    if failures:
        raise SystemExit(f"{len(failures)} events were not written: {failures[0]}")
    return taken


if __name__ == "__main__":
    asyncio.run(run_works({"write-keys": write}))
