"""The table of RPCs: what is declared of each method, with the function that answers it.

Owns: ``RPCS``, and the registration of handlers. Modules whose names end with ``handlers`` have
the handlers, and register them when they are imported.

Invariants:
1. ``RPCS`` has every method of the interface. The handler of a method that is not served refuses
   the call with a sentence. Held by ``test_every_method_is_served_or_refused_in_words``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from pravega_controller.controller import Controller
from pravega_controller.rpc.permissions import Row
from pravega_security.principals import Principal
from pravega_security.resources import Level
from pravega_wire import controller_pb2 as pb

Mint = Callable[[Principal, str, str, Level], str]
"""Returns a token of a caller for the segments of a stream of a scope, up to a level."""


@dataclass(frozen=True, slots=True)
class Call:
    """The controller of a call, and the host and port at which its caller can reach us.

    ``explain`` sends an error's sentence with an answer whose status alone does not say the reason.
    ``caller`` is who calls, None while authorization is off.
    """

    controller: Controller
    host: str
    port: int
    explain: Callable[[Exception], None]
    caller: Principal | None = None
    mint: Mint | None = None

    def may_read(self, resource: str) -> bool:
        """Return whether the caller may see a resource in a list."""
        return self.caller is None or self.caller.authorize(resource) >= Level.READ

    def token_for(self, info: pb.StreamInfo, wanted: Level) -> str:
        """Return a token for a stream's segments with what the caller has of ``wanted``; empty
        while authorization is off."""
        if self.caller is None or self.mint is None:
            return ""
        return self.mint(self.caller, info.scope, info.stream, wanted)


Handler = Callable[[Call, Any], Awaitable[Message]]
H = TypeVar("H", bound=Handler)

Immediate = Callable[[Call, Any], Message | None]


@dataclass(frozen=True, slots=True)
class Rpc:
    """A method of the interface."""

    name: str
    answer: Handler
    permission: Row
    immediate: Immediate | None = None
    """Answers in the handler's place, in any thread, when it need not wait, and returns None
    otherwise. It may read only values that are replaced as a whole."""
    question: bool = False
    """True if the call changes nothing, so it is cancelled when its client disconnects."""


RPCS: dict[str, Rpc] = {}
"""The methods by name."""


def rpc(
    name: str, permission: Row, *, immediate: Immediate | None = None, question: bool = False
) -> Callable[[H], H]:
    """Return a decorator that declares a handler: see ``Rpc``."""

    def enter(handler: H) -> H:
        assert name not in RPCS
        RPCS[name] = Rpc(name, handler, permission, immediate, question)
        return handler

    return enter
