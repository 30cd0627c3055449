"""The cache: bytes of segments in memory, bounded, evicted by generations."""
