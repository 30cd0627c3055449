"""Asks segment stores why they do not answer.

Owns: ``ask_delays``, and ``Delays``, which shows the reason to the user of a client that waits.

The command ``AskDelays`` is sent over a new connection, for two reasons. The store may have stopped
reading the connection on which the client waits. A server that does not know the command, such as
the original's, closes the connection that it came from.
"""

from __future__ import annotations

from collections.abc import Callable

from pravega_wire import commands as wire
from pravega_wire.blocking import ReplyTimeoutError
from pravega_wire.errors import ProtocolError
from segstore_client.access.tokens import PLAIN, StoreAccess
from segstore_client.backoff import Patience
from segstore_client.errors import StoreDelayedError, UntrustedServerError

ASK_SECONDS_MAX = 1.0

OnDelay = Callable[[str], None]
"""A function that is called with the reason, in one sentence, why a store does not answer now."""


def ask_delays(
    host: str, port: int, *, seconds_max: float = ASK_SECONDS_MAX, access: StoreAccess = PLAIN
) -> str | None:
    """Return the sentence in which a store says what its requests wait for.

    Returns "" if they wait for nothing, or if the store cannot be reached; None if the store does
    not know the command.
    """
    try:
        connection = access.connect(host, port, timeout=seconds_max)
    except (ProtocolError, UntrustedServerError):
        return ""
    with connection:
        try:
            reply = connection.call(wire.AskDelays(connection.next_request_id()))
        except ReplyTimeoutError:
            return ""
        except ProtocolError:
            return None
    return "; ".join(reply.reasons) if isinstance(reply, wire.DelaysTold) else None


class Delays:
    """Tells the user of a waiting client what the store waits for.

    ``on_delay`` is called with the sentence. Without it, only the error that ends the wait has it.
    """

    def __init__(self, on_delay: OnDelay | None = None, access: StoreAccess = PLAIN) -> None:
        self._access = access
        self._on_delay = on_delay
        self._is_known = True

    def look(self, host: str, port: int, patience: Patience) -> None:
        """Ask a store that does not answer for the reason, and pass it to ``on_delay``.

        Raises ``StoreDelayedError`` when the store has given a reason until ``patience`` ended.
        """
        if not self._is_known:
            return
        sentence = ask_delays(host, port, access=self._access)
        self._is_known = sentence is not None
        if not sentence:
            return
        passed = patience.begin()
        if passed >= patience.seconds:
            raise StoreDelayedError(sentence)
        if self._on_delay is not None:
            self._on_delay(sentence)
