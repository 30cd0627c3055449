"""Tokens of an identity provider: the settings, its keys, and the verification."""
