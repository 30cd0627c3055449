"""The `segstore` command: serves and administers; the only package that assembles the others."""
