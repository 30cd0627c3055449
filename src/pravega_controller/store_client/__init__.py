"""Clients of segment stores: segments, tables, and the placement of containers."""
