"""The settings of HDFS.

Owns: ``HdfsSettings``, the table ``segment_store.hdfs`` of a settings file.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class HdfsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for the use of HDFS."""

    user: str | None = None
    """Name of the user that is sent to HDFS (``user.name``). ``HADOOP_USER_NAME`` when None, else
    the user who runs the store."""
    token_file: str | None = None
    """Path of a file with a delegation token as WebHDFS gives it, which is sent instead of the
    user's name. It is read again whenever it changes: what renews the token replaces the file."""
    ca_file: str | None = None
    """Path of the certificates, in PEM, with which NameNodes and DataNodes are checked in
    ``swebhdfs``; the system's when None."""
    replication: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(extra={"original": "hdfs.replication.factor hdfs.replication HDFS_REPLICATION"}),
    ] = None
    """Number of copies of each chunk; what HDFS is configured with (``dfs.replication``) when None.
    """
    block_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(extra={"original": "hdfs.block.size hdfs.blockSize"}),
    ] = None
    """Length, in bytes, of a chunk's blocks; what HDFS is configured with (``dfs.blocksize``) when
    None."""
    requires_sync: bool = True
    """True if a start is refused when a DataNode says that it does not sync what it closes
    (``dfs.datanode.synconclose``). Without that a power cut of all DataNodes that have a block can
    lose history."""

    def __post_init__(self) -> None:
        """Refuse, with a ``ValueError``, numbers that no file can have."""
        if self.replication is not None and self.replication < 1:
            raise ValueError(f"replication has to be at least 1, not {self.replication}")
        if self.block_bytes is not None and self.block_bytes < 1:
            raise ValueError(f"block_bytes has to be at least 1, not {self.block_bytes}")
