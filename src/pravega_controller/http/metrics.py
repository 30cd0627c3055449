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

from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog
import trio

from pravega_controller.controller import Controller
from pravega_metrics import controller_metrics as metrics
from pravega_metrics.exposition import Source
from pravega_metrics.metrics import Family, Labels, Reading
from pravega_metrics.process_metrics import read_process
from pravega_metrics.readings import InvalidReadingsError, decode_readings

STORES_KEY: Final = "metrics of segment stores"

Address: TypeAlias = tuple[str, int]

log = structlog.get_logger(__name__)


async def gather_metrics(controller: Controller, *, is_ready: bool, name: str) -> list[Source]:
    """Return the readings of the controller, whose name is ``name``, and of the segment stores if
    this controller has to report them."""
    own = read_own_metrics(is_ready=is_ready)
    if not controller.members.owns(STORES_KEY):
        return [Source("controller", name, own)]
    containers = controller.placement.containers_by_store()
    answers = await ask_stores(controller)
    is_up: dict[Labels, Reading] = {(store,): int(each.is_up) for store, each in answers.items()}
    own += [
        metrics.STORE_UP.family(is_up),
        metrics.STORE_CONTAINERS.family(
            {(name_store(address),): count for address, count in containers.items()}
        ),
    ]
    told = [
        Source("segmentstore", store, each.families)
        for store, each in answers.items()
        if each.families is not None
    ]
    return [Source("controller", name, own), *told]


def read_own_metrics(*, is_ready: bool) -> list[Family]:
    """Return the readings of this process."""
    return [
        *(each.read() for each in metrics.RECORDED),
        *read_process(),
        metrics.IS_READY.family({(): int(is_ready)}),
    ]


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """The answer of a store, when it was asked for its metrics."""

    is_up: bool
    families: list[Family] | None
    """None if it did not answer, or what it answered was not understood."""


async def ask_stores(controller: Controller) -> dict[str, StoreAnswer]:
    """Return the answers of all segment stores, by their names in order."""
    answers: dict[Address, bytes | None] = {}

    async def ask(address: Address) -> None:
        answers[address] = await controller.segments.read_metrics(address)

    async with trio.open_nursery() as nursery:
        for address in controller.placement.containers_by_store():
            nursery.start_soon(ask, address)
    return {name_store(address): _understand(data) for address, data in sorted(answers.items())}


def name_store(address: Address) -> str:
    """Return the name of a store in readings."""
    host, port = address
    return f"{host}:{port}"


def _understand(data: bytes | None) -> StoreAnswer:
    if data is None:
        return StoreAnswer(is_up=False, families=None)
    try:
        return StoreAnswer(is_up=True, families=decode_readings(data))
    except InvalidReadingsError as error:
        log.warning("a segment store's metrics are not understood", error=str(error))
        return StoreAnswer(is_up=True, families=None)
