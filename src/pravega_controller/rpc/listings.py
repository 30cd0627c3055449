"""Lists with what the caller may read.

Owns: the pages of such a list.

Invariants:
1. When a page has no name that the caller may read, the next page is returned instead: official
   clients end a list at an empty page. Held by ``test_lists_have_what_the_caller_may_read``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pravega_controller.metadata.scope_records import Listing
from pravega_controller.rpc.rpc import Call


async def list_readable(
    call: Call,
    list_page: Callable[[str], Awaitable[Listing]],
    token: str,
    resource_of: Callable[[str], str],
) -> Listing:
    """Return the next page with a name that the caller may read, and no other names.

    An empty page ends the list for clients.
    """
    while True:
        listing = await list_page(token)
        readable = [name for name in listing.names if call.may_read(resource_of(name))]
        if readable or not listing.names:
            return Listing(readable, listing.token)
        token = listing.token
