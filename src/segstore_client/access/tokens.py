"""Delegation tokens: what a client shows to segment stores, for one stream.

Owns: ``DelegationTokens``, the token that the controller gave for a stream, and ``StoreAccess``,
the way to the stream's segment stores: with TLS or without, and with a token or without.

A client keeps a token until shortly before it expires. The server's clock may differ from this
machine's, so the token's own times tell how long it lasts, and this machine's clock counts that.

Invariants:
1. When a token expires within ``RENEWAL_SECONDS``, or a store has called it expired, the next
   request has a new one. Held by ``test_a_token_is_asked_for_anew_before_it_expires`` and
   ``test_a_token_that_a_store_calls_expired_is_asked_for_anew``.
2. Without credentials no token is asked for. Held by
   ``test_without_credentials_no_token_is_asked_for``.
3. When the clocks of client and server differ, a token is still used for as long as it lasts. Held
   by ``test_a_token_lasts_as_long_on_a_machine_with_another_clock``.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pravega_wire.blocking import ConnectionLostError, SegmentConnection
from pravega_wire.commands import AuthTokenCheckFailed
from pravega_wire.errors import ProtocolError
from segstore_client.access.words import ENVIRONMENT, AccessWords
from segstore_client.errors import NoPermissionError, UntrustedServerError

if TYPE_CHECKING:
    import ssl

    from segstore_client.access.tls import ClientTls

RENEWAL_SECONDS = 5.0
"""Time, in seconds, before its end at which a token is replaced."""
TOKEN_EXPIRED = 1
"""The code of a store's answer to a token that was valid once."""


class TokenExpiredError(ProtocolError):
    """A segment store called the token expired: the same request with a new one may succeed."""


class DelegationTokens:
    """The token for one stream. Use it in one thread.

    ``ask`` gets a token from the controller; "" is one of a controller without authorization, and
    is kept. ``known`` is a token that another process got. ``now`` is in seconds since 1970.
    """

    def __init__(
        self, ask: Callable[[], str], *, known: str = "", now: Callable[[], float] = time.time
    ) -> None:
        self._ask = ask
        self._now = now
        self._token: str | None = known or None
        self._renewal: float | None = None
        if known:
            _, expires = read_token_times(known)
            self._renewal = None if expires is None else expires - RENEWAL_SECONDS

    def get(self) -> str:
        """Return a token that is valid now. Raises ``PravegaError`` as calls to a controller do."""
        if self._token is None or (self._renewal is not None and self._now() >= self._renewal):
            asked = self._now()
            self._token = self._ask()
            issued, expires = read_token_times(self._token)
            self._renewal = None
            if expires is not None:
                lasts = expires - (asked if issued is None else issued)
                self._renewal = asked + max(lasts - RENEWAL_SECONDS, lasts / 2)
        return self._token

    def forget(self) -> None:
        """Ask for a new token at the next request: a store does not accept this one."""
        self._token = None


def read_token_times(token: str) -> tuple[float | None, float | None]:
    """Return when a token was issued and when it expires, in seconds since 1970; None if unknown.

    The signature is not checked: only servers can.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None, None
    text = parts[1].replace("-", "+").replace("_", "/")
    try:
        claims = json.loads(base64.b64decode(text + "=" * (-len(text) % 4)))
        times = [claims.get(name) for name in ("iat", "exp")]
    except (ValueError, AttributeError):
        return None, None
    issued, expires = (
        float(each) if isinstance(each, int | float) and not isinstance(each, bool) else None
        for each in times
    )
    return issued, expires


class StoreAccess:
    """The way to the segment stores of one stream. Without arguments: no TLS, and no tokens."""

    def __init__(
        self,
        *,
        tls: ClientTls | None = None,
        tokens: DelegationTokens | None = None,
        words: AccessWords = ENVIRONMENT,
    ) -> None:
        self.tls = tls
        self.words = words
        """The words of the program's user, for advice in errors."""
        self._tokens = tokens

    def connect(
        self,
        host: str,
        port: int,
        *,
        timeout: float | None,
        on_wait: Callable[[], None] | None = None,
    ) -> SegmentConnection:
        """Return a connection to a segment store.

        Raises errors as ``SegmentConnection``, and ``UntrustedServerError`` when TLS forbids it.
        """
        context = self.make_context()
        try:
            return SegmentConnection(host, port, timeout=timeout, on_wait=on_wait, tls=context)
        except ConnectionLostError as error:
            if context is not None:
                raise_if_untrusted(error, host, port, self.words)
            raise

    @property
    def has_tokens(self) -> bool:
        """Return whether ``token`` may ask the controller, and wait for it."""
        return self._tokens is not None

    def token(self) -> str:
        """Return the token for a request; "" without authorization."""
        return "" if self._tokens is None else self._tokens.get()

    def refusal(self, reply: AuthTokenCheckFailed, sentence: str) -> Exception:
        """Return the error for a store's refusal of the token; ``sentence`` says what was refused.

        It is ``TokenExpiredError``, after which to try again, or ``NoPermissionError``.
        """
        if reply.error_code == TOKEN_EXPIRED and self._tokens is not None:
            self._tokens.forget()
            return TokenExpiredError(f"{sentence}: the token has expired")
        if self._tokens is None:
            return NoPermissionError(
                f"{sentence}: the store asks who calls; {self.words.login_advice}"
            )
        return NoPermissionError(f"{sentence}: the segment store does not accept the token")

    def make_context(self) -> ssl.SSLContext | None:
        """Return what a socket is secured with; None without TLS."""
        if self.tls is None:
            return None
        from segstore_client.access.tls import make_context

        return make_context(self.tls)


def raise_if_untrusted(
    error: ConnectionLostError, host: str, port: int, words: AccessWords
) -> None:
    """Raise ``UntrustedServerError`` if the cause of a failed connection is the server's TLS."""
    import ssl

    from segstore_client.access.tls import describe_tls_error

    cause = error.__cause__
    # A server that ends the handshake without a word may be restarting.
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        raise UntrustedServerError(describe_tls_error(cause, host, port, words)) from cause


PLAIN = StoreAccess()
"""The way to stores without TLS and without authorization."""
