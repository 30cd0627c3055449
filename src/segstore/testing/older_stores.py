"""Data directories as older versions of segstore left them.

Owns: what this version writes that older ones did not know.
"""

from __future__ import annotations

from pathlib import Path

from segstore.process.data_directory import VERSION_FILE
from segstore.process.identity import STORE_PREFIX
from segstore.tiers.chunk_paths import path_of
from segstore.tiers.journal.files import IDENTITY_FILE


def make_older(path: Path, *, storage: Path | None = None) -> None:
    """Remove the identities from a store that is stopped, whose tier 2 is a directory."""
    version_file = path / VERSION_FILE
    lines = version_file.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(("store_id", "state", "tier_2"))]
    version_file.write_text("".join(kept).replace("version = 3", "version = 2"))
    for identity in path.glob(f"journal-*/{IDENTITY_FILE}"):
        identity.unlink()
    begin = path_of(STORE_PREFIX).removesuffix(".chunk")
    for chunk in (storage or path / "storage").glob(f"{begin}*"):
        chunk.unlink()
