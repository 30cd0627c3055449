"""The readings of all processes that a controller reports.

Owns: ``gather_metrics``. A controller reports its own readings. One of the controllers, the owner
of ``STORES_KEY`` among them, also reports those of the segment stores, so that a sum over all
controllers counts each store once.

Invariants:
1. When a store does not answer, it is reported as not up, and the others as ever. Held by
   ``test_a_store_that_does_not_answer_is_told_as_down``.
2. When there are several controllers, one of them reports the stores. Held by
   ``test_one_of_the_controllers_tells_of_the_stores``.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from pravega_controller.controller import Controller
from pravega_metrics import controller_metrics as metrics
from pravega_metrics.exposition import Source
from pravega_metrics.metrics import Labels, Reading
from pravega_metrics.process_metrics import read_process
from pravega_metrics.readings import InvalidReadingsError, decode_readings

STORES_KEY: Final = "metrics of segment stores"

log = structlog.get_logger(__name__)


async def gather_metrics(controller: Controller, *, is_ready: bool, name: str) -> list[Source]:
    """Return the readings of the controller, whose name is ``name``, and of the segment stores if
    this controller has to report them."""
    own = [
        *(each.read() for each in metrics.RECORDED),
        *read_process(),
        metrics.IS_READY.family({(): int(is_ready)}),
    ]
    if not controller.members.owns(STORES_KEY):
        return [Source("controller", name, own)]
    containers = controller.placement.containers_by_store()
    answers: dict[tuple[str, int], bytes | None] = {}

    async def ask(address: tuple[str, int]) -> None:
        answers[address] = await controller.segments.read_metrics(address)

    async with trio.open_nursery() as nursery:
        for address in containers:
            nursery.start_soon(ask, address)
    sources = []
    is_up: dict[Labels, Reading] = {}
    for (host, port), data in sorted(answers.items()):
        store = f"{host}:{port}"
        is_up[store,] = int(data is not None)
        if data is not None:
            try:
                sources.append(Source("segmentstore", store, decode_readings(data)))
            except InvalidReadingsError as error:
                log.warning("a segment store's metrics are not understood", error=str(error))
    own += [
        metrics.STORE_UP.family(is_up),
        metrics.STORE_CONTAINERS.family(
            {(f"{host}:{port}",): count for (host, port), count in containers.items()}
        ),
    ]
    return [Source("controller", name, own), *sources]
