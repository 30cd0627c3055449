"""Slows down those who guess passwords.

Owns: the failed logins of late, by address and user and by address alone, and the time for which
the next one has to wait. No I/O: the caller refuses the login, and reports failures.

An address and a user belong together, so nobody can lock a user out from other addresses. Whether
the user exists makes no difference. After some failures each further one doubles the time, up to a
bound. For an address alone, each user counts once: it is delayed for trying many users, and not for
one client with a former password, behind which others may have the same address. Addresses of IPv6
count by their first 64 bits, since one machine has all that begin so.

Invariants:
1. When logins of a pair fail again and again, attempts are refused for a growing time. Held by
   ``test_failures_cost_more_and_more_time``.
2. A refused attempt does not make the time longer, so a client that got the right password is let
   in soon. Held by ``test_a_refused_attempt_makes_the_time_no_longer``.
3. When many users are tried from an address, attempts from there are refused for a growing time,
   for each user. Held by ``test_many_users_from_one_address_cost_time``.
4. However many addresses and users try to log in, memory is bounded. Held by
   ``test_the_table_is_bounded``.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

FREE_FAILURES: Final = 5
"""The failures of a pair after which the first delay comes."""
FREE_USERS: Final = 20
"""Number of users whose logins fail from an address after which the first delay of it comes."""
FIRST_DELAY_SECONDS: Final = 1.0
DELAY_SECONDS_MAX: Final = 30.0
FORGET_SECONDS: Final = 900.0
"""Time, in seconds, without failures after which a pair or an address counts as new."""
ENTRIES_MAX: Final = 8192
"""Maximum number of pairs and addresses; the ones that failed the longest time ago are dropped."""


@dataclass(slots=True)
class _Failures:
    count: int
    last: float
    until: float


class LoginDelays:
    """The delays of all addresses and users. Any thread may call it."""

    def __init__(self, now: Callable[[], float], *, entries_max: int = ENTRIES_MAX) -> None:
        self._now = now
        self._entries_max = entries_max
        self._failures: OrderedDict[bytes, _Failures] = OrderedDict()
        self._lock = threading.Lock()
        self.failure_count = 0
        """The number of logins that failed."""
        self.refusal_count = 0
        """The number of attempts that were refused because of earlier failures."""

    def refuse_seconds(self, peer: str, user: str) -> int:
        """Return for how many seconds more attempts are refused, rounded up; 0 to let this one
        try."""
        with self._lock:
            now = self._now()
            entries = (self._failures.get(key) for key in (_key(peer, user), _key(peer)))
            left = max(0 if each is None else math.ceil(each.until - now) for each in entries)
            if left <= 0:
                return 0
            self.refusal_count += 1
            return left

    def note_failure(self, peer: str, user: str) -> None:
        """Note a login that failed."""
        with self._lock:
            self.failure_count += 1
            if self._count(_key(peer, user), FREE_FAILURES) == 1:
                self._count(_key(peer), FREE_USERS)
            while len(self._failures) > self._entries_max:
                self._failures.popitem(last=False)

    def _count(self, key: bytes, free: int) -> int:
        """Count a failure of a pair or an address, and return which one it is of late."""
        now = self._now()
        found = self._failures.pop(key, None)
        if found is None or now - found.last >= FORGET_SECONDS:
            found = _Failures(0, now, now)
        found.count += 1
        found.last = now
        found.until = now + _delay_after(found.count - free)
        self._failures[key] = found
        return found.count

    def note_success(self, peer: str, user: str) -> None:
        """Forget the failures of a pair whose login succeeded, not those of its address: who tries
        many users may have one."""
        if self._failures:
            with self._lock:
                self._failures.pop(_key(peer, user), None)


def address_of(peer: str) -> str:
    """Return what counts as one address: an IPv4 address, the first 64 bits of an IPv6 address, or
    the text itself. The forms of gRPC, ``ipv4:ADDRESS:PORT`` and ``ipv6:[ADDRESS]:PORT``, are
    known."""
    text = unquote(peer)
    if text.startswith("ipv4:"):
        text = text.removeprefix("ipv4:").partition(":")[0]
    elif text.startswith("ipv6:["):
        text = text.removeprefix("ipv6:[").partition("]")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def _delay_after(steps: int) -> float:
    if steps < 0:
        return 0.0
    return min(DELAY_SECONDS_MAX, FIRST_DELAY_SECONDS * 2.0 ** min(steps, 16))


def _key(peer: str, user: str | None = None) -> bytes:
    """Return the key of a pair, or without a user that of an address."""
    address = address_of(peer)
    text = (address if user is None else f"{address}\0{user}").encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
