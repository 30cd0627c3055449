"""Verbs about certificates, keys of tokens, and users: they work on files."""
