"""A client without a valid token, which tries everything.

Owns: ``Intruder``. What it writes is in no stream at the end, and its answers are looked at by
``watch``: this module only finds tokens that are not for what it asks.

A token that has expired is valid again when the store's clock is set back while the request is
under way. So it comes with the name of a segment of the stream that no client has: to do what is
asked of that one is as wrong, and does no harm when it is right.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import trio

from pravega_security.delegation_tokens import Keys, encode_token
from pravega_security.resources import Level, stream_resource
from pravega_wire import commands as wire
from pravega_wire import names
from segstore.testing.wire_client import PeerClosedError, WireClient
from tokens.clients import SCOPE, STREAM, Surroundings
from tokens.connections import OpenStream
from tokens.rights import Minted
from tokens.watch import StoreClock

FOREIGN_KEY = b"f" * 86
NEVER = 2**40
"""A time, in seconds since 1970, that no clock of a run shows."""
ANSWER_SECONDS_MAX = 10.0


class Intruder:
    """See the module."""

    def __init__(
        self,
        around: Surroundings,
        open_stream: OpenStream,
        minted: dict[str, Minted],
        clock: StoreClock,
        keys: Keys,
    ) -> None:
        self._around = around
        self._open_stream = open_stream
        self._minted = minted
        self._clock = clock
        self._keys = keys

    async def run(self, pause_seconds: float) -> None:
        """Try one thing after another, until cancelled."""
        around = self._around
        while True:
            await around.pause(pause_seconds)
            active = await around.place.ask(lambda c: c.streams.active_segments(SCOPE, STREAM))
            chosen = around.random.choice(active).segment_id
            try:
                with trio.move_on_after(ANSWER_SECONDS_MAX):
                    await self._try(names.segment_name(SCOPE, STREAM, chosen))
            except (OSError, trio.BrokenResourceError, PeerClosedError):
                continue

    async def _try(self, segment: str) -> None:
        """Send a few requests, also those that come behind a refused one."""
        random = self._around.random
        async with await self._open_stream() as stream:
            client = WireClient(stream)
            for _ in range(random.randint(1, 3)):
                make, expired = random.choice(_REQUESTS), self._expired_tokens()
                token = random.choice(self._never_valid_tokens() + expired)
                asked = segment + "0" if token in expired else segment
                request = make(asked, token, client.next_request_id())
                reply = await client.call(request)
                if isinstance(request, wire.SetupAppend):
                    await client.append(request.writer_id, b"intruder", number=0)
                    with trio.move_on_after(1):
                        await client.receive()
                if not isinstance(reply, wire.AuthTokenCheckFailed):
                    return

    def _never_valid_tokens(self) -> list[str]:
        """Return tokens of every kind that is not valid by any clock."""
        now = self._clock()
        claims = {
            "sub": "segmentstoreresource",
            "aud": "segmentstore",
            "iat": now,
            "*": "READ_UPDATE",
            "exp": now + 600,
        }
        early = encode_token(claims | {"nbf": NEVER, "exp": NEVER + 600}, self._keys.current)
        postponed = [_postpone(token, now + 600) for token in self._expired_tokens()[:1]]
        foreign = encode_token(claims, FOREIGN_KEY)
        return ["", early, foreign, *postponed, *self._tokens_for_others()]

    def _expired_tokens(self) -> list[str]:
        """Return the first token that has expired, and the last ones, of clients that go on."""
        now = self._clock()
        found = [token for token, minted in self._minted.items() if minted.expires <= now]
        return found[:1] + found[-3:] * 2

    def _tokens_for_others(self) -> list[str]:
        controller = self._around.place.controller
        if controller is None or controller.tokens is None:
            return []
        mint = controller.tokens.mint_claims
        return [
            mint({stream_resource(SCOPE, STREAM + "a"): Level.READ_UPDATE}),
            mint({stream_resource(SCOPE + "s", STREAM): Level.READ_UPDATE}),
            mint({stream_resource(SCOPE, STREAM): Level.NONE}),
        ]


def _postpone(token: str, expires: int) -> str:
    """Return a token with another end, and the signature that it had."""
    header, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    changed = json.dumps(claims | {"exp": expires}).encode()
    encoded = base64.urlsafe_b64encode(changed).rstrip(b"=").decode()
    return f"{header}.{encoded}.{signature}"


_REQUESTS: list[Callable[[str, str, int], wire.Request]] = [
    lambda segment, token, number: wire.SetupAppend(number, bytes(range(16)), segment, token),
    lambda segment, token, number: wire.SealSegment(number, segment, token),
    lambda segment, token, number: wire.DeleteSegment(number, segment, token),
    lambda segment, token, number: wire.TruncateSegment(number, segment, 1, token),
    lambda segment, token, number: wire.MergeSegments(number, segment, segment + "0", token),
    lambda segment, token, number: wire.CreateSegment(number, segment + "0", 0, 0, token),
    lambda segment, token, number: wire.ReadSegment(segment, 0, 1000, token, number),
    lambda segment, token, number: wire.GetStreamSegmentInfo(number, segment, token),
]
