"""Servers as processes of this machine: their settings, their data directory, their start."""
