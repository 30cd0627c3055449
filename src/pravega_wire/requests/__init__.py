"""Connections to segment stores, and requests over them, for tasks of trio or asyncio."""
