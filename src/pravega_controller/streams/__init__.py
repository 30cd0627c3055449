"""Streams: the steps that create, scale, seal, truncate, roll and delete them."""
