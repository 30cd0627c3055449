"""Calls the RPCs by which HTTP requests are answered: with the same rights, handlers and audit
lines as over gRPC.

Owns: ``Calls``, ``CallOfRequest``, and the HTTP status of each kind of error.

An HTTP request is converted into requests of RPCs. The declaration of an RPC says which right its
caller needs, so a right is declared once for both ports. A route that no RPC can answer
only asks whether the caller may call a certain RPC, and does not call it, because the call may wait
for segment stores.

Invariants:
1. When the caller lacks a right, the request is refused as the RPC is: 401 without a user or with
   wrong credentials, 403 with too low a level. Held by ``test_refusals_are_those_of_the_rpcs``.
2. When a request's headers name a user, no other header or address does. Held by
   ``test_one_authorization_header_decides``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog
from google.protobuf.message import Message

from pravega_controller.controller import Controller
from pravega_controller.errors import (
    AlreadyExistsError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    ScalePreconditionError,
    StoreUnavailableError,
    StreamNotSealedError,
    StreamSealedError,
    TableNotEmptyError,
    UnauthenticatedError,
    UnverifiableError,
    VersionConflictError,
)
from pravega_controller.rpc.authorization import HEADER
from pravega_controller.rpc.rpc import RPCS, Call, Rpc
from pravega_security.principals import Principal
from pravega_security.resources import Level
from pravega_wire import controller_pb2 as pb
from pravega_wire.names import InvalidNameError

if TYPE_CHECKING:
    from pravega_controller.rpc.authorization import Authorization

STATUSES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (UnauthenticatedError, 401),
    (PermissionDeniedError, 403),
    (UnverifiableError, 503),
    (NotFoundError, 404),
    (InvalidRequestError, 400),
    (InvalidNameError, 400),
    (AlreadyExistsError, 409),
    (VersionConflictError, 409),
    (TableNotEmptyError, 412),
    (StreamNotSealedError, 412),
    (StreamSealedError, 409),
    (ScalePreconditionError, 409),
    (IllegalStateError, 409),
    (StoreUnavailableError, 503),
)
"""The HTTP status of each kind of error; the first that matches decides."""

log = structlog.get_logger(__name__)


class Refusal(Exception):
    """A request is refused with an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Caller:
    """The headers and the address of a request, as ``Authorization`` reads those of gRPC."""

    headers: tuple[tuple[str, str], ...]
    address: str

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers, by names in small letters."""
        return self.headers

    def peer(self) -> str:
        """Return the address from which the request comes, in gRPC's form."""
        return self.address


class Calls:
    """Calls RPCs of one controller. Without ``authorization`` everybody may call everything."""

    def __init__(self, controller: Controller, authorization: Authorization | None) -> None:
        self.controller = controller
        self._authorization = authorization

    def of(self, headers: list[tuple[str, str]], address: str) -> CallOfRequest:
        """Return what makes the calls of a request with these headers."""
        proofs = [(name, value) for name, value in headers if name == HEADER]
        if len(proofs) > 1:
            raise Refusal(400, f"the request has {len(proofs)} headers {HEADER}")
        return CallOfRequest(
            self.controller, self._authorization, Caller(tuple(headers), address), []
        )


@dataclass(frozen=True, slots=True)
class CallOfRequest:
    """Makes the calls of one HTTP request; its caller is established once."""

    controller: Controller
    authorization: Authorization | None
    caller: Caller
    found: list[Principal | None]

    async def call(self, name: str, request: Message) -> Any:
        """Return the answer of an RPC. Raises what its handler raises, and ``Refusal`` with the
        sentence of an answer that has one."""
        principal = await self.permit(name, request)
        explained: list[Exception] = []
        call = Call(self.controller, "", 0, explained.append, principal)
        answer = await RPCS[name].answer(call, request)
        if explained:
            raise Refusal(400, str(explained[0]))
        return answer

    async def permit(self, name: str, request: Message) -> Principal | None:
        """Return the caller, who has what an RPC needs. Raises as a call would, and makes none."""
        if self.authorization is None:
            return None
        rpc = RPCS[name]
        principal = await self._find_caller(self.authorization, rpc)
        self.authorization.permit(rpc, request, principal, self.caller)
        return principal

    async def may(self, name: str, request: Message) -> bool:
        """Return whether the caller has what an RPC needs; a refusal is not noted."""
        if self.authorization is None:
            return True
        rpc = RPCS[name]
        principal = await self._find_caller(self.authorization, rpc)
        try:
            self.authorization.check(rpc, request, principal)
        except (UnauthenticatedError, PermissionDeniedError):
            return False
        return True

    async def identify(self) -> str | None:
        """Return the caller's name, None for nobody. Raises ``UnauthenticatedError``."""
        if self.authorization is None:
            return None
        principal = await self._find_caller(self.authorization, RPCS["listScopes"])
        return None if principal is None else principal.name

    async def _find_caller(self, authorization: Authorization, rpc: Rpc) -> Principal | None:
        if not self.found:
            self.found.append(await authorization.admit(rpc, self.caller))
        return self.found[0]

    def may_read(self, resource: str) -> bool:
        """Return whether the caller may see a resource in a list; ask after the first call."""
        [principal] = self.found or [None]
        return principal is None or principal.authorize(resource) >= Level.READ

    async def list_all(
        self, name: str, make: Callable[[pb.ContinuationToken], Message], field: str
    ) -> list[Any]:
        """Return the entries of all pages of an RPC that lists; ``field`` has those of a page."""
        found: list[Any] = []
        token = pb.ContinuationToken()
        while True:
            answer = await self.call(name, make(token))
            status = getattr(answer, "status", None)
            if status is not None and status != type(answer).SUCCESS:
                raise Refusal(404, "there is no such scope")
            entries = getattr(answer, field)
            if not entries:
                return found
            found += entries
            token = answer.continuationToken


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal that answers an error; an unexpected error is logged."""
    if isinstance(error, Refusal):
        return error
    for kind, status in STATUSES:
        if isinstance(error, kind):
            return Refusal(status, str(error))
    log.error("an HTTP request failed", exc_info=error)
    return Refusal(500, "the controller failed; its log says more")
