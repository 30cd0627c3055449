"""Calls that are repeated while servers are away.

Owns: ``repeat_calls``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from segstore_client.backoff import Patience
from segstore_client.controller.controller_client import RETRIED_ERRORS
from segstore_client.errors import gave_up

T = TypeVar("T")


def repeat_calls(call: Callable[[], T], patience: Patience, what: str) -> T:
    """Return the result of a call, which is repeated while servers are away.

    Raises the error of a client that gives up, with ``what`` it could not do, when the time is
    over, and ``OutOfTimeError`` when the limit of the call is over.
    """
    while True:
        try:
            result = call()
        except RETRIED_ERRORS as error:
            if not patience.wait():
                raise gave_up(f"{what} for {patience.seconds:g} s", error) from error
        else:
            patience.renew()
            return result
