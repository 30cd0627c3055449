"""The table of RPCs: the function that answers each method, and the methods that are refused.

Owns: the tables and the registration of handlers. Modules whose names end with ``handlers`` have
the handlers, and register them when they are imported.

Invariants:
1. ``HANDLERS`` and ``NOT_IMPLEMENTED`` together name every method of the interface exactly once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from pravega_controller.controller import Controller


@dataclass(frozen=True, slots=True)
class Call:
    """The controller of a call, and the host and port at which its caller can reach us."""

    controller: Controller
    host: str
    port: int


Handler = Callable[[Call, Any], Awaitable[Message]]
H = TypeVar("H", bound=Handler)

HANDLERS: dict[str, Handler] = {}

NOT_IMPLEMENTED: dict[str, str] = {
    "getControllerToBucketMapping": "this controller runs no bucket services",
}
"""Methods that are refused, each with the sentence of the refusal."""


Immediate = Callable[[Call, Any], Message | None]

IMMEDIATE: dict[Handler, Immediate] = {}
"""Functions that answer in a handler's place, in any thread, when they need not wait, and return
None otherwise. They read only values that change as a whole."""


QUESTIONS: set[Handler] = set()
"""Handlers that change nothing: they end when their caller has gone away."""


def rpc(
    name: str, *, immediate: Immediate | None = None, question: bool = False
) -> Callable[[H], H]:
    """Return a decorator that registers a handler under its method's name, in all its tables."""

    def enter(handler: H) -> H:
        assert name not in HANDLERS
        assert name not in NOT_IMPLEMENTED
        HANDLERS[name] = handler
        if immediate is not None:
            IMMEDIATE[handler] = immediate
        if question:
            QUESTIONS.add(handler)
        return handler

    return enter
