"""The settings of logins with tokens of an identity provider.

Owns: their fields. The module is apart because help and configurations need no cryptography.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta


class BearerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The checks of bearer tokens, and the rights that they give."""

    keys: str
    """The place of the public keys: the URL of a JSON Web Key Set, or the path of a file."""
    issuer: str
    """The issuer that a token has to name, as ``iss``."""
    audience: str
    """The audience that a token has to name, as ``aud``, alone or among others."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    """The algorithms that tokens may be signed with: RS, PS and ES with 256, 384 or 512; EdDSA."""
    leeway_seconds: Annotated[float, Meta(ge=0, le=300)] = 30
    """Seconds by which the clocks of the issuer and this machine may differ."""
    name_claim: str = "sub"
    """The claim with the caller's name."""
    rights_claim: str = "pravega_acl"
    """The claim with the caller's rights, in the form of an accounts file; empty for none. Dots
    lead into objects."""
    roles_claim: str = "roles"
    """The claim with the caller's roles or groups, as ``realm_access.roles``."""
    role_rights: dict[str, str] = {}
    """The rights of each role, in the form of an accounts file."""
    ca: Path | None = None
    """File with the certificates that the server of the keys is trusted by, in PEM; by default
    those of the system."""
