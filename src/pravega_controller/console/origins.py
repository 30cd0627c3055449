"""Requests that a page of another site has made a browser send.

Owns: ``check_origin`` and ``check_host``.

A browser sends a user's name and password with each request for this port, whichever page made it
ask. Where there are no users, a page whose name leads to this machine's own address could read what
the console shows.

Invariants:
1. When a change is not asked for by a page of the console itself, it is refused. Held by
   ``test_a_change_that_another_site_asks_for_is_refused``.
2. When there are no users, and a browser reaches the console by a name that somebody else may have
   chosen, it is refused. Held by ``test_without_users_a_foreign_name_is_refused``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from pravega_controller.http.calls import Refusal


def check_origin(headers: Mapping[str, str]) -> None:
    """Raise ``Refusal`` unless a page from this port asks for a change."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        is_ours = site == "same-origin"
    else:
        # Browsers send the first header over TLS and to this machine, the second in any case.
        is_ours = origin is not None and urlsplit(origin).netloc == headers.get("host")
    if not is_ours:
        raise Refusal(403, "only a page of this console may ask for a change")


def check_host(headers: Mapping[str, str], names: Collection[str]) -> None:
    """Raise ``Refusal`` if the name that the browser used may be one that leads here by deceit."""
    try:
        host = urlsplit("//" + headers.get("host", "")).hostname or ""
    except ValueError:
        host = "?."
    # Nobody owns a name without a dot on the internet.
    if "." not in host.removesuffix(".localhost") or host in names or _is_address(host):
        return
    raise Refusal(
        403,
        f"this controller has no users, so it shows the console only under its own name: open it"
        f" by its address, or start it with the published address {host}",
    )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
