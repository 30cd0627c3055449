"""Connections to segment stores, and requests over them, for tasks that do not block."""
