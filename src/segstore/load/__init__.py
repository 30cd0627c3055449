"""Measures how busy segments are, and tells controllers which of them should be split or merged."""
