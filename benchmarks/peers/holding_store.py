"""The command `segstore` with a tier 2 in a directory that takes nothing of what users write.

Run as `python -m benchmarks.peers.holding_store server ...`.
"""

from benchmarks.peers.assembled_store import HeldChunkStorage
from pravega_admin.cli import main
from segstore.process import tier_two
from segstore.tiers.files.filesystem import FilesystemChunkStorage


def run() -> None:
    """Run the command line."""
    setattr(tier_two, FilesystemChunkStorage.__name__, HeldChunkStorage)
    main()


if __name__ == "__main__":
    run()
