"""Requests that a page of another site has made a browser send.

Owns: ``check_origin``, ``check_foreign_page`` and ``check_host``.

A browser sends a user's name and password with each request for this port, whichever page made it
ask: to the console, and to REST. Where there are no users, a page whose name leads to this
machine's own address could read what the console shows. Programs send none of these headers.

Invariants:
1. When a change is not asked for by a page of the console itself, it is refused. Held by
   ``test_a_change_that_another_site_asks_for_is_refused``.
2. When a page of another site makes a browser ask for a change by REST, it is refused; programs may
   ask for it. Held by ``test_rest_changes_nothing_for_a_page_of_another_site``.
3. When there are no users, and a browser reaches the console by a name that somebody else may have
   chosen, it is refused. Held by ``test_without_users_a_foreign_name_is_refused``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from pravega_controller.http.calls import Refusal


def check_origin(headers: Mapping[str, str]) -> None:
    """Raise ``Refusal`` unless a page from this port asks for a change."""
    site = headers.get("sec-fetch-site")
    # Browsers send this header over TLS and to this machine, the other one in any case.
    if not (_is_own_origin(headers) if site is None else site == "same-origin"):
        raise Refusal(403, "only a page of this console may ask for a change")


def check_foreign_page(
    headers: Mapping[str, str], names: Collection[str], *, has_users: bool
) -> None:
    """Raise ``Refusal`` if a page of another site asks for a change; ``names`` are our own."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return
    if not (_is_own_origin(headers) if site is None else site in ("same-origin", "none")):
        raise Refusal(403, "no page of another site may ask for a change")
    if not has_users:
        check_host(headers, names)


def _is_own_origin(headers: Mapping[str, str]) -> bool:
    try:
        return urlsplit(headers.get("origin", "")).netloc == headers.get("host")
    except ValueError:
        return False


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
