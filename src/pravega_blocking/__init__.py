"""Blocking clients of a store: its controller, and what reads and writes its streams.

The command line, the Spark data source and tests use them.
"""
