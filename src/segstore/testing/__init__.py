"""Helps compat-tests, benchmarks and foreign_servers, too; a process that serves never uses it."""
