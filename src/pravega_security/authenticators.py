"""The ways to establish who calls, by the methods of the ``authorization`` header.

Owns: which authenticators there are: that of the accounts file, that of bearer tokens, and those
that other packages bring.

A package brings one by an entry point of the group ``segstore.authenticators``: a function that is
called with the settings under the entry point's name, and returns an ``Authenticator``.

Invariants:
1. When two authenticators have the same method, the first is used: ours before those of packages.
   Held by ``test_the_first_of_a_method_counts``.
2. When an authenticator of a package cannot be loaded, the others are used, and a warning is
   logged. Held by ``test_one_that_cannot_be_loaded_is_skipped``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

import structlog

from pravega_security.accounts import Accounts, BasicAuthenticator
from pravega_security.identity_provider.bearer_settings import BearerSettings
from pravega_security.principals import Authenticator

ENTRY_POINT_GROUP: Final = "segstore.authenticators"

logger = structlog.get_logger(__name__)


def find_entry_points() -> Iterable[EntryPoint]:
    """Return the authenticators of all packages that are installed, in the order of their
    names."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda each: each.name)


def load_authenticators(
    accounts_path: Path | None,
    *,
    bearer: BearerSettings | None = None,
    package_settings: Mapping[str, Mapping[str, Any]] | None = None,
    find_packages: Callable[[], Iterable[EntryPoint]] = find_entry_points,
) -> dict[str, Authenticator]:
    """Return all authenticators by method. Blocks.

    Raises ``AccountsFileError`` and ``BearerSettingsError``: a server whose own settings are wrong
    does not start.
    """
    found: dict[str, Authenticator] = {}
    if accounts_path is not None:
        _add(found, BasicAuthenticator(Accounts(accounts_path)), "the accounts file")
    if bearer is not None:
        # Its libraries are large.
        from pravega_security.identity_provider.bearer import BearerAuthenticator

        tokens = BearerAuthenticator(bearer)
        for problem in tokens.problems:
            logger.warning("the rights of roles have something doubtful", what=problem)
        _add(found, tokens, "bearer tokens")
    for entry_point in find_packages():
        settings = dict((package_settings or {}).get(entry_point.name, {}))
        try:
            authenticator = entry_point.load()(settings)
            _add(found, authenticator, entry_point.name)
        except Exception as error:
            # The error's text could contain a secret of the settings.
            logger.warning(
                "an authenticator is skipped, since it cannot be loaded",
                name=entry_point.name,
                place=entry_point.value,
                error=type(error).__name__,
            )
    return found


def _add(found: dict[str, Authenticator], authenticator: Authenticator, source: str) -> None:
    method = authenticator.method
    if method in found:
        logger.warning("an authenticator is skipped: there is one", method=method, name=source)
        return
    found[method] = authenticator
