"""Benchmarks: one file per question. Nothing here ships with the product."""
