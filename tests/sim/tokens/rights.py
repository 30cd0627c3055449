"""The tokens of a run: the keys on each machine, the minter, and a record of all that was made.

Owns: ``KeyCopy``, ``RecordedMinter``, and ``allows``, which tells of a token what it is for without
the code under test.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio

from pravega_security.delegation_tokens import TokenMinter
from pravega_security.resources import Level
from pravega_wire import commands as wire
from segstore.network.connection import HANDLERS

LOOK_SECONDS = 1.0
"""Interval, in seconds, in which a machine looks whether its file of keys has changed."""
_ABOUT_THE_TOKEN = frozenset(("sub", "aud", "iat", "exp"))


class KeyCopy:
    """The keys of one machine: as they were at its last look at its file."""

    def __init__(self, first: bytes) -> None:
        self._valid = self._file = (first,)
        self._next_look = 0.0

    @property
    def current(self) -> bytes:
        """Return the key that signs."""
        return self.all_valid[0]

    @property
    def all_valid(self) -> tuple[bytes, ...]:
        """Return the keys that may have signed, the current one first."""
        if trio.current_time() >= self._next_look:
            self.look()
        return self._valid

    def look(self) -> None:
        """Read the file now."""
        self._next_look = trio.current_time() + LOOK_SECONDS
        self._valid = self._file

    def replace(self, *keys: bytes) -> None:
        """Replace the file."""
        self._file = keys


@dataclass(frozen=True)
class Minted:
    """The claims of a token."""

    levels: dict[str, str]
    expires: int


class RecordedMinter(TokenMinter):
    """A minter that keeps what it has made in ``minted``, by token."""

    def __init__(
        self, keys: KeyCopy, seconds: int, now: Callable[[], int], minted: dict[str, Minted]
    ) -> None:
        super().__init__(keys, seconds, now)
        self._minted = minted

    def mint_claims(self, levels: dict[str, Level]) -> str:
        """Return a token for some resources."""
        return self._record(super().mint_claims(levels))

    def mint_master(self) -> str:
        """Return a token for everything."""
        return self._record(super().mint_master())

    def _record(self, token: str) -> str:
        if token not in self._minted:
            body = token.split(".")[1]
            claims = json.loads(base64.b64decode(body + "=" * (-len(body) % 4)))
            levels = {name: claims[name] for name in claims.keys() - _ABOUT_THE_TOKEN}
            self._minted[token] = Minted(levels, claims["exp"])
        return token


def allows(minted: Minted, request: Any) -> bool:
    """Return whether a token is for a request, whenever it expires."""
    handler = HANDLERS.get(type(request))
    if handler is None:
        assert isinstance(request, wire.ReadSegment)
        return _has(minted, request.segment, Level.READ)
    return all(_has(minted, each, handler.level) for each in handler.segments(request))


def _has(minted: Minted, segment: str, level: Level) -> bool:
    scope, stream = segment.split("/")[:2]
    names = ("*", f"prn::/scope:{scope}/stream:{stream}")
    return any(Level[minted.levels.get(name, "NONE")] >= level for name in names)
