"""Blocking clients of a store: its controller, and writers and readers of its streams.

The command line, the Spark data source and tests use them.
"""
