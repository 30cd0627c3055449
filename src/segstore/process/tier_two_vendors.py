"""The vendors of tier 2, by the scheme of their locations, such as ``s3://bucket/prefix``.

Owns: ``VendorSettings``, which has a field for each vendor. A new kind of tier 2 needs a folder in
``tiers`` and a field here. A store that has no location uses a directory, which has no scheme and
no field.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Annotated, Any, Final, get_args, get_type_hints

import msgspec

from segstore.errors import StorageConfigurationError
from segstore.tiers.api import ChunkStorage
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.hdfs.vendor import HDFS
from segstore.tiers.s3.settings import S3Settings
from segstore.tiers.s3.vendor import S3
from segstore.tiers.vendor import TierTwo, Vendor


class VendorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of each vendor, which are a table in the settings file."""

    s3: Annotated[S3Settings, S3] = S3Settings()
    hdfs: Annotated[HdfsSettings, HDFS] = HdfsSettings()


SECTIONS: Final[dict[str, Vendor]] = {
    name: get_args(hint)[1]
    for name, hint in get_type_hints(VendorSettings, include_extras=True).items()
}
"""The vendors, by the names of their tables in the settings file."""
VENDORS: dict[str, Vendor] = {
    scheme: vendor for vendor in SECTIONS.values() for scheme in vendor.schemes
}
"""The vendors, by the schemes of their locations."""


def is_location(text: str) -> bool:
    """Return whether the text is a location of a vendor, and not a directory."""
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme in VENDORS


def known_forms() -> str:
    """Return the forms of all locations, for users."""
    return " or ".join(dict.fromkeys(each.form for each in VENDORS.values()))


def known_vendors() -> str:
    """Return the names of all vendors with the forms of their locations, for users."""
    return " or ".join(f"{each.title} ({each.form})" for each in SECTIONS.values())


def vendor_of(location: str) -> Vendor:
    """Return a location's vendor. Raises ``StorageConfigurationError`` if its scheme is unknown."""
    if not is_location(location):
        raise StorageConfigurationError(f"--tier2 {location!r} is not {known_forms()}")
    return VENDORS[location.partition("://")[0]]


@asynccontextmanager
async def open_location(location: str, settings: VendorSettings) -> AsyncIterator[TierTwo]:
    """Open the tier 2 at a location for the block; see ``Vendor.open``."""
    vendor = vendor_of(location)
    async with AsyncExitStack() as stack:
        try:
            opening = vendor.open(location, _own_settings(vendor, settings))
            tier = await stack.enter_async_context(opening)
        except ModuleNotFoundError as error:
            raise StorageConfigurationError(
                f"tier 2 in {location} needs the Python package {error.name}, which is not"
                " installed"
            ) from error
        yield tier


@contextmanager
def look_at_location(location: str, settings: VendorSettings) -> Iterator[ChunkStorage]:
    """Open the chunks at a location for the block, for reading only."""
    vendor = vendor_of(location)
    with vendor.look(location, _own_settings(vendor, settings)) as chunks:
        yield chunks


def _own_settings(vendor: Vendor, settings: VendorSettings) -> Any:
    return next(
        (getattr(settings, name) for name, each in SECTIONS.items() if each is vendor), None
    )
