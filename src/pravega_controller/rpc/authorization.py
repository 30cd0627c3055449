"""Establishes who makes a call, and decides whether it is allowed.

Owns: the reading of the header ``authorization``, the choice of the way to establish who calls, and
the decision about each call by its RPC's row.

Invariants:
1. When a call has no credentials, only methods that need no user are answered; when it has wrong
   ones, every method is refused. Held by ``test_what_is_proved_wrongly_refuses_every_call``.
2. When a user's level is too low, the call is refused with PERMISSION_DENIED, and a call without
   valid credentials with UNAUTHENTICATED: official clients repeat neither. Held by
   ``test_a_level_too_low_is_refused_by_each_rpc``.
3. When a name has a slash, no token is made for it: its claim would be about other segments than
   those whose rights were looked up. Held by ``test_a_name_with_a_slash_gets_no_token``.
4. When logins fail, the log and the audit log have a line with their number, at most one each
   ``TELL_SECONDS``. Held by ``test_failed_logins_are_told_by_their_number``.
5. When a caller does not prove who it is, its line in the audit log has the user that it claims to
   be, and no secret. Held by ``test_a_refused_login_is_a_line_with_the_user_that_was_tried``.
6. While a password is verified, which takes long, other calls are answered. Held by
   ``test_other_calls_are_answered_while_a_password_is_verified``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog
import trio
from google.protobuf.message import Message

from pravega_controller.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnidentifiedError,
    UnverifiableError,
)
from pravega_controller.rpc.audit_log import READING, ROUTINE, AuditLog, subject_of
from pravega_controller.rpc.permissions import Need, claims_of
from pravega_controller.rpc.rpc import Rpc
from pravega_security.delegation_tokens import TokenError, TokenMinter, TokenVerifier
from pravega_security.principals import (
    AuthenticationError,
    AuthenticationUnavailableError,
    Authenticator,
    Principal,
)
from pravega_security.resources import Level

HEADER: Final = "authorization"
OWN_METHOD: Final = "Token"
"""The method of this store's own processes: the rest of the header is a token for everything."""
VERIFICATIONS_MAX: Final = 2
"""Number of threads in which passwords are verified: each takes a core for up to 0.1 s."""
TELL_SECONDS: Final = 60.0
"""Interval, in seconds, between two lines about logins that failed."""

log = structlog.get_logger(__name__)


class OwnProcess:
    """A process of this store, which may do everything."""

    name = "segstore"

    def authorize(self, resource: str) -> Level:
        """Return the highest level."""
        return Level.READ_UPDATE


class Authorization:
    """Decides about calls. ``known`` may be called in any thread, the rest in the event loop."""

    def __init__(
        self,
        authenticators: Mapping[str, Authenticator],
        minter: TokenMinter,
        verifier: TokenVerifier,
        *,
        audit: AuditLog,
        group_level: Level = Level.READ,
    ) -> None:
        self._authenticators = authenticators
        self._minter = minter
        self._verifier = verifier
        self._limiter = trio.CapacityLimiter(VERIFICATIONS_MAX)
        self.audit = audit
        self.group_level = group_level
        self._failed_count = 0
        self._failed_peer = ""

    async def tell_failures(self) -> None:
        """Tell now and then how many logins have failed, forever."""
        while True:
            await trio.sleep(TELL_SECONDS)
            if self._failed_count:
                count, self._failed_count = self._failed_count, 0
                log.warning("logins failed", count=count, last_address=self._failed_peer)
                sentence = f"{count} logins failed in {TELL_SECONDS:g} s"
                self.audit.note("login", None, self._failed_peer, "", sentence)

    def find_known(self, context: Any) -> Principal | None:
        """Return the caller if that takes no time, else None. Raises ``UnauthenticatedError``."""
        proof = _read_proof(context)
        if proof is None:
            return None
        method, token = proof
        if method == OWN_METHOD:
            return self._verify_own(token)
        find_known = getattr(self._authenticators.get(method), "find_known", None)
        return None if find_known is None else find_known(token, context.peer())

    async def find(self, context: Any) -> Principal | None:
        """Return the caller, None for one that proves nothing. Raises ``UnauthenticatedError``."""
        known = self.find_known(context)
        proof = _read_proof(context)
        if known is not None or proof is None:
            return known
        method, token = proof
        authenticator = self._authenticators.get(method)
        if authenticator is None:
            return None
        try:
            return await trio.to_thread.run_sync(
                authenticator.authenticate, token, context.peer(), limiter=self._limiter
            )
        except AuthenticationUnavailableError as error:
            raise UnverifiableError(str(error), claimed=error.claimed) from None
        except AuthenticationError as error:
            self._failed_count += 1
            self._failed_peer = context.peer()
            raise UnauthenticatedError(str(error), claimed=error.claimed) from None
        # The authenticator may be of a package that others wrote. Clients would repeat a call that
        # fails without a reason.
        except Exception as error:
            log.error("an authenticator failed", method=method, error=type(error).__name__)
            raise UnauthenticatedError(f"the method {method} does not work here") from None

    def _verify_own(self, token: str) -> Principal:
        try:
            is_master = self._verifier.verify(token).is_master
        except TokenError as error:
            sentence = f"the token of a process is refused: {error}"
            raise UnauthenticatedError(sentence, claimed=OwnProcess.name) from None
        if not is_master:
            sentence = "the token is for a client, not for a process of the store"
            raise UnauthenticatedError(sentence, claimed=OwnProcess.name)
        return OwnProcess()

    async def admit(self, rpc: Rpc, context: Any) -> Principal | None:
        """Return the caller as ``find`` does; a refusal gets a line in the audit log."""
        try:
            return await self.find(context)
        except UnidentifiedError as error:
            self.audit.note(rpc.name, error.claimed, context.peer(), "", str(error))
            raise

    def admit_known(self, rpc: Rpc, context: Any) -> Principal | None:
        """Return the caller as ``find_known`` does; a refusal gets a line in the audit log."""
        try:
            return self.find_known(context)
        except UnidentifiedError as error:
            self.audit.note(rpc.name, error.claimed, context.peer(), "", str(error))
            raise

    def permit(self, rpc: Rpc, request: Message, caller: Principal | None, context: Any) -> None:
        """Check the call as ``check`` does; changes and refusals get a line in the audit log."""
        name = None if caller is None else caller.name
        try:
            need = self.check(rpc, request, caller)
        except (UnauthenticatedError, PermissionDeniedError) as error:
            self.audit.note(rpc.name, name, context.peer(), subject_of(request), str(error))
            raise
        if need is not None and not rpc.question and rpc.name not in ROUTINE | READING:
            subject = subject_of(request) or need.resources[0]
            self.audit.note(rpc.name, name, context.peer(), subject)

    def check(self, rpc: Rpc, request: Any, caller: Principal | None) -> Need | None:
        """Return what was needed. Raises ``UnauthenticatedError`` and ``PermissionDeniedError``."""
        need = rpc.permission(request, self.group_level)
        if need is None:
            return None
        if caller is None:
            raise UnauthenticatedError(
                f"{rpc.name} needs a user: send {HEADER} with one of the methods"
                f" {', '.join(sorted(self._authenticators))}"
            )
        if not need.is_met_by(caller):
            raise PermissionDeniedError(
                f"{caller.name} has not the level {need.level.name} for {need.resources[0]},"
                f" which {rpc.name} needs"
            )
        return need

    def mint(self, caller: Principal, scope: str, stream: str, wanted: Level) -> str:
        """Return a token for the segments of a stream, with what the caller has of ``wanted``.

        Raises ``InvalidRequestError``.
        """
        if "/" in scope or "/" in stream:
            raise InvalidRequestError("the name of a scope or a stream has no slash")
        claims = claims_of(caller, scope, stream, wanted, self.group_level)
        return self._minter.mint_claims(claims)


def _read_proof(context: Any) -> tuple[str, str] | None:
    """Return method and token of a call's header; None without one."""
    for key, value in context.invocation_metadata():
        if key == HEADER:
            method, *rest = value.split(maxsplit=1)[:2] or [""]
            return (method, rest[0]) if rest else None
    return None
