"""Tier 2 in HDFS: see ``storage`` for how chunks become files."""

from segstore.tiers.hdfs.location import HdfsLocation as HdfsLocation
from segstore.tiers.hdfs.location import HdfsLocationError as HdfsLocationError
