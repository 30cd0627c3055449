"""Slows writers down, and stops them, while the store falls behind."""
