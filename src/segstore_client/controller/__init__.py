"""The controller, by calls that block, and what it manages: scopes, streams, tables and groups."""
