"""Slows writers down, and stops them, while tier 2 is slower than they are."""
